"""The audit log: one JSON line for each ticket, refusal and CSR decision, with caller, evidence and outcome.

Only attested callers cause lines: what others cause is in the log, at a bounded rate
(`trust.attested.refusal_log`), so that it cannot displace these. A token appears by its id, never its secret;
no other content of a ticket is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TextIO

from bootbridge.errors import OperatorError
from bootbridge.join_service.authorization import AttestedCaller
from bootbridge.trust.evidence import AttestedPeer


class AuditOutcome(StrEnum):
    ISSUED = "issued"
    REFUSED = "refused"
    NOT_YET = "not yet"  # resolves without operator action
    FAILED = "failed"
    APPROVED = "approved"
    DENIED = "denied"


TEXT_CHARACTERS_MAX: Final = 1000
_UNKNOWN_CALLER: Final = AttestedCaller(AttestedPeer(""), "")


class AuditLog:
    """Writes whole lines, each flushed before the response is sent."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock

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
        now = datetime.fromtimestamp(self._clock(), UTC)
        line: dict[str, Any] = {
            "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
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
        self._stream.write(json.dumps({key: value for key, value in line.items() if value}) + "\n")
        self._stream.flush()


def _bounded(text: str) -> str:
    """A request's name, and what a reason quotes of it, are the caller's text; JSON escapes it."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}…"


def open_audit(path: str) -> TextIO:
    """Opens for appending; a new file is readable by its owner only."""
    try:
        return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error.strerror}", subject="--audit-file") from None
