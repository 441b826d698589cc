"""One JSON line for each ticket, each refusal and each kubelet's first certificate: who asked, by what
evidence, and what came of it.

A token is named by its id, never by its secret; nothing else of a ticket is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from bootbridge.errors import OperatorError
from bootbridge.join_service.authorization import AttestedCaller
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused

ISSUED: Final = "issued"
REFUSED: Final = "refused"
NOT_YET: Final = "not yet"
FAILED: Final = "failed"
APPROVED: Final = "approved"
DENIED: Final = "denied"

_NOBODY: Final = AttestedCaller(AttestedPeer(""), "")


class AuditLog:
    """Whole lines only, each handed to the system before the answer leaves."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock

    def record_refused_evidence(self, address: str, why: EvidenceRefused) -> None:
        """Whoever's evidence does not convince never gets as far as asking, and nothing is known about it."""
        self.record("evidence", REFUSED, AttestedCaller(AttestedPeer(""), address), name="", reason=str(why))

    def record_csr_decision(self, outcome: str, *, node: str, token: str, reason: str) -> None:
        """What a bootstrap token asked for; the API server knows it by its token alone."""
        self.record("client certificate", outcome, _NOBODY, name=node, reason=reason, token=token)

    def record(
        self,
        what: str,
        outcome: str,
        caller: AttestedCaller,
        *,
        name: str,
        role: str = "",
        reason: str = "",
        token: str = "",
    ) -> None:
        now = datetime.fromtimestamp(self._clock(), UTC)
        line: dict[str, Any] = {
            "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "what": what,
            "outcome": outcome,
            "node": name,
            "role": role,
            "address": caller.address,
            "evidence": caller.attested.kind,
            "identity": caller.attested.identity,
            "facts": dict(caller.attested.facts),
            "warnings": list(caller.attested.warnings),
            "reason": reason,
            "tokenID": token,
        }
        self._stream.write(json.dumps({key: value for key, value in line.items() if value}) + "\n")
        self._stream.flush()


def open_audit(path: str) -> TextIO:
    """Appended to; one that is made now is readable by its owner alone."""
    try:
        return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error.strerror}", subject="--audit-file") from None
