"""Why servers are not reached: the last reason of each target, and log lines at a bounded rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from bootbridge.ports.event_log import EventLog

# Attempts follow each other every second at first. An operator who opens the log sees the reason in it.
REPEAT_SECONDS: Final = 60.0
# A server that answers with another text each time is logged only so often.
REASONS_MAX: Final = 8


class _TargetFailures:
    """The failed attempts of one target since it was last connected."""

    def __init__(self) -> None:
        self.attempts = 0
        self.last = ""
        self.logged_at: dict[str, float] = {}


class ConnectFailures:
    """Logs a reason when it is new for its target, then once per minute while it lasts."""

    def __init__(self, event_log: EventLog, now: Callable[[], float]) -> None:
        self._event_log = event_log
        self._now = now
        self._targets: dict[str, _TargetFailures] = {}

    def last(self, target: str) -> str:
        """Returns the reason of the last attempt; empty if it succeeded, or if there was none."""
        failures = self._targets.get(target)
        return failures.last if failures else ""

    def failed(self, target: str, reason: str) -> None:
        failures = self._targets.setdefault(target, _TargetFailures())
        failures.attempts += 1
        failures.last = reason
        if self._is_due(failures, reason):
            self._event_log.warning(
                "server not reached", target=target, reason=reason, attempts=failures.attempts
            )

    def _is_due(self, failures: _TargetFailures, reason: str) -> bool:
        now, logged_at = self._now(), failures.logged_at
        for each in [each for each, at in logged_at.items() if now - at >= REPEAT_SECONDS]:
            del logged_at[each]
        if reason in logged_at or len(logged_at) >= REASONS_MAX:
            return False
        logged_at[reason] = now
        return True

    def succeeded(self, target: str) -> None:
        self._targets.pop(target, None)

    def forget_others(self, known: Iterable[str]) -> None:
        """The addresses of a name change."""
        kept = set(known)
        self._targets = {target: found for target, found in self._targets.items() if target in kept}
