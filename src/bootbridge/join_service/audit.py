"""The audit log: one JSON line for each ticket, refusal and CSR decision, with caller, evidence and outcome.

Only attested callers cause lines: what others cause is in the log, at a bounded rate
(`trust.attested.refusal_log`), so that it cannot displace these. An attested caller that is refused in a
loop causes REFUSALS_PER_CALLER_MAX lines in a window, all callers together REFUSALS_MAX; the others are
counted. Lines of tickets, approvals, and failures that may have left a token are never left out. A token
appears by its id, never its secret; no other content of a ticket is written.

A thread of its own writes the lines, so that a reader that does not read stops no ticket. If it does not read
for long, lines are dropped: their number is in the log, in `/status`, and here when the reader returns.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Protocol

from bootbridge.errors import OperatorError
from bootbridge.join_service.authorization import AttestedCaller
from bootbridge.runtime import logs
from bootbridge.runtime.line_writer import LineWriter
from bootbridge.trust.evidence import AttestedPeer


class AuditOutcome(StrEnum):
    ISSUED = "issued"
    REFUSED = "refused"
    NOT_YET = "not yet"  # resolves without operator action
    FAILED = "failed"
    APPROVED = "approved"
    DENIED = "denied"


TEXT_CHARACTERS_MAX: Final = 1000
WINDOW_SECONDS: Final = 60.0
REFUSALS_PER_CALLER_MAX: Final = 20
REFUSALS_MAX: Final = 200
# Never left out: each created something.
_GRANTS: Final = (AuditOutcome.ISSUED, AuditOutcome.APPROVED)
_UNKNOWN_CALLER: Final = AttestedCaller(AttestedPeer(""), "")


class AuditLines(Protocol):
    """Where lines go; see LineWriter."""

    @property
    def dropped(self) -> int: ...

    def write(self, line: bytes) -> None: ...


class AuditLog:
    """Queues whole lines before the response is sent."""

    def __init__(self, lines: AuditLines, clock: Callable[[], float]) -> None:
        self.omitted = 0  # lines of refused callers, since the start
        self._lines = lines
        self._clock = clock
        self._window_ends = 0.0
        self._refusals: Counter[str] = Counter()  # of this window, by caller
        self._omitted_before = 0
        self._dropped_logged = 0
        self._drop_may_be_logged = True

    @property
    def dropped(self) -> int:
        """Lines that were not written, since the start."""
        return self._lines.dropped

    def record_csr_decision(self, outcome: AuditOutcome, *, node: str, token_id: str, reason: str) -> None:
        """The API server identifies the requester by its bootstrap token only."""
        self.record(
            "client certificate", outcome, _UNKNOWN_CALLER, name=node, reason=reason, token_id=token_id
        )

    def record(
        self,
        event: str,
        outcome: AuditOutcome,
        caller: AttestedCaller,
        *,
        name: str,
        role: str = "",
        reason: str = "",
        token_id: str = "",
    ) -> None:
        self._begin_window()
        # A ticket that failed, as when its caller disconnected, may have left a valid token.
        granted = outcome in _GRANTS or (outcome is AuditOutcome.FAILED and token_id)
        if not granted and self._is_too_much(caller.attested.identity or name):
            self.omitted += 1
            return
        line: dict[str, Any] = {
            "time": _timestamp(self._clock()),
            "event": event,
            "outcome": outcome,
            "node": _bounded(name),
            "role": role,
            "address": caller.address,
            "evidence": caller.attested.kind,
            "identity": caller.attested.identity,
            "facts": {fact: _bounded(value) for fact, value in caller.attested.facts.items()},
            "warnings": [_bounded(each) for each in caller.attested.warnings],
            "reason": _bounded(reason),
            "tokenID": token_id,
        }
        self._write({key: value for key, value in line.items() if value})

    def _is_too_much(self, caller: str) -> bool:
        if self._refusals[caller] >= REFUSALS_PER_CALLER_MAX or self._refusals.total() >= REFUSALS_MAX:
            return True
        self._refusals[caller] += 1
        return False

    def _begin_window(self) -> None:
        """Reports what the last window left out, with the first line after it."""
        now = self._clock()
        if now < self._window_ends:
            return
        self._window_ends = now + WINDOW_SECONDS
        self._refusals.clear()
        if count := self.omitted - self._omitted_before:
            self._omitted_before = self.omitted
            self._write(_count_line(now, "omitted", count))
        self._drop_may_be_logged = True

    def _write(self, line: dict[str, Any]) -> None:
        self._lines.write(json.dumps(line).encode() + b"\n")
        if self._drop_may_be_logged and self.dropped > self._dropped_logged:
            self._drop_may_be_logged = False  # once in a window
            count, self._dropped_logged = self.dropped - self._dropped_logged, self.dropped
            logs.event("join-service", logs.ERROR, "audit lines dropped", count=count, total=self.dropped)


def _count_line(now: float, outcome: str, count: int) -> dict[str, Any]:
    return {"time": _timestamp(now), "event": "audit", "outcome": outcome, "lines": count}


def _timestamp(now: float) -> str:
    text = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _bounded(text: str) -> str:
    """A request's name, and what a reason quotes of it, are the caller's text; JSON escapes it."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}…"


def open_audit(path: str, clock: Callable[[], float]) -> LineWriter:
    """Opens a file for appending, or standard output; a new file is readable by its owner only."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if path else sys.stdout.fileno()
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error.strerror}", subject="--audit-file") from None
    return LineWriter(fd, lambda count: json.dumps(_count_line(clock(), "dropped", count)).encode() + b"\n")
