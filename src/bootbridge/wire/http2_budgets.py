"""Budgets for frames that cost work and transfer nothing: a flood of them ends the connection.

A budget is a number of frames. It is refilled by time and by work: DATA frames in either direction and their
size. So a peer that answers our data (WINDOW_UPDATE, and grpc-go's PING behind nearly every message) never
uses it up, and a peer that sends nothing else does. Spending is one subtraction; the clock is read only when
a budget is used up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bootbridge.wire import frames as f
from bootbridge.wire.frames import Http2ConnectionError

# Budgets that do not belong to one frame type; the others have the number of their type.
UNKNOWN_FRAME: Final = 10
STREAM_ERROR: Final = 11
EARLY_DATA: Final = 12
NAMES: Final = (
    "empty DATA",
    "HEADERS",
    "PRIORITY",
    "RST_STREAM",
    "SETTINGS",
    "PUSH_PROMISE",
    "PING",
    "GOAWAY",
    "WINDOW_UPDATE",
    "CONTINUATION",
    "unknown",
    "invalid",
    "DATA before admission",
)
# Bytes of DATA that count as much as one DATA frame.
WORK_BYTES: Final = 4096
# RFC 9113 defines 6 settings, and extensions a few more.
SETTINGS_ENTRIES_MAX: Final = 64


class BudgetExceeded(Http2ConnectionError):
    """The peer sent too many frames of one kind; ``frame`` names it."""

    def __init__(self, frame: str, text: str) -> None:
        super().__init__(text, f.ENHANCE_YOUR_CALM)
        self.frame = frame


def check_settings_size(size: int) -> None:
    if size > SETTINGS_ENTRIES_MAX * f.SETTING.size:
        raise BudgetExceeded("SETTINGS", f"SETTINGS frame too large: {size} bytes")


@dataclass(frozen=True, slots=True)
class FrameBudget:
    """How many frames at once, how many more each second, and how many more for each unit of work."""

    burst: int
    per_second: int = 1
    per_work: int = 0


def many_streams(streams_max: int) -> tuple[FrameBudget, ...]:
    """The budgets of a connection with many calls, in the order of ``NAMES``."""
    # A client may open all streams at once, and reset all.
    calls = FrameBudget(2 * streams_max + 1000, 100, 1)
    return (
        FrameBudget(100),
        calls,
        FrameBudget(100),
        calls,
        FrameBudget(100),
        FrameBudget(1),
        FrameBudget(1000, 10, 2),
        FrameBudget(100),
        FrameBudget(1000, 10, 4),
        FrameBudget(100, 1, 1),
        FrameBudget(100),
        calls,
        FrameBudget(16),
    )


def one_stream() -> tuple[FrameBudget, ...]:
    """The budgets of a connection with one long call, as agents open it: further ones are retries."""
    few = FrameBudget(16)
    budgets = list(many_streams(1))
    for kind in (f.HEADERS, f.RST_STREAM, f.CONTINUATION, STREAM_ERROR):
        budgets[kind] = few
    return tuple(budgets)


ONE_STREAM: Final = one_stream()


class Http2Budgets:
    """What one connection may still send. ``work`` returns the units of work done so far."""

    __slots__ = ("_budgets", "_left", "_now", "_refilled", "_started_at", "_work")

    def __init__(
        self, budgets: Sequence[FrameBudget], now: Callable[[], float], work: Callable[[], int]
    ) -> None:
        self._budgets = budgets
        self._now = now
        self._work = work
        self._started_at = now()
        self._left = [budget.burst for budget in budgets]
        # When, and after how much work, a budget was refilled last.
        self._refilled: dict[int, tuple[float, int]] = {}

    def spend(self, kind: int) -> None:
        """Takes one frame from a budget; raises BudgetExceeded if nothing is left."""
        left = self._left[kind]
        if left > 0:
            self._left[kind] = left - 1
        else:
            self._refill(kind)

    def _refill(self, kind: int) -> None:
        budget = self._budgets[kind]
        now, work = self._now(), self._work()
        refilled_at, work_then = self._refilled.get(kind, (self._started_at, 0))
        earned = int((now - refilled_at) * budget.per_second) + (work - work_then) * budget.per_work
        if earned <= 0:
            raise BudgetExceeded(NAMES[kind], f"too many {NAMES[kind]} frames")
        self._left[kind] = min(earned, budget.burst) - 1
        self._refilled[kind] = (now, work)
