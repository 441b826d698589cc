"""Evidence: how a peer proves what it is, bound to one very session.

A kind of evidence is a pair: an `Issuer` on the side that proves, a `Verifier` on the side that is to be
convinced. Both speak about the same 32 bytes, the *statement* (`trust/attested/binding.py`), which
names this session, both nonces, and the prover's role; evidence about another statement is worth nothing.

Most kinds are said in one message. A kind that needs the verifier to ask back (a TPM whose endorsement
certificate is trusted must show that its attestation key lives in the same chip) answers one challenge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bootbridge.errors import BootbridgeError

STATEMENT_BYTES = 32
# A document that is larger is refused unread: quotes, event logs and certificate chains are far smaller.
DOCUMENT_BYTES_MAX = 64 * 1024


class EvidenceRefused(BootbridgeError):
    """Evidence was looked at and does not convince; the text is fit to be told to both sides."""


class EvidenceUnavailable(BootbridgeError):
    """This side cannot make its own evidence now: a busy or broken device, a missing file."""


@dataclass(frozen=True)
class Attested:
    """What a verifier found proven about the peer."""

    kind: str
    # Names the key that proved it, for ever the same for one machine: "sha256:<hex>" over the key's DER
    # SubjectPublicKeyInfo. Empty when the kind knows no such key (a shared token).
    identity: str = ""
    # Further facts, for the audit log and the policy: {"pcr15": "00…", "subject": "CN=…", "token": "id"}.
    facts: Mapping[str, str] = field(default_factory=dict)
    # What did not match and was let pass, because the policy says "warn".
    warnings: tuple[str, ...] = ()


class Issuer(Protocol):
    """Proves: makes evidence about a statement."""

    kind: str

    async def issue(self, statement: bytes) -> bytes:
        """The document; raises EvidenceUnavailable."""
        ...

    async def answer(self, statement: bytes, challenge: bytes) -> bytes:
        """The answer to a verifier's challenge; kinds that know none raise EvidenceRefused."""
        ...


class Verification(Protocol):
    """One peer being verified."""

    def document(self, document: bytes) -> Attested | bytes:
        """The finding, or a challenge that the peer has to answer first; raises EvidenceRefused."""
        ...

    def answered(self, answer: bytes) -> Attested:
        """The finding after the challenge; raises EvidenceRefused."""
        ...


class Verifier(Protocol):
    """Is to be convinced; holds the policy. Safe to share between sessions: `begin` one for each."""

    kind: str

    def begin(self, statement: bytes) -> Verification: ...
