"""Evidence: how a peer proves what it is, bound to one TLS session.

A kind of evidence (`token`, `x509`, `tpm`) is a pair: an `Issuer` on the side that proves, a `Verifier` on
the side that checks. Both refer to the same 32 bytes, the channel binding
(`trust/attested/channel_binding.py`); evidence for another binding is refused. `configuration` reads which
kinds an operator chose.

Most kinds need one message. A TPM with a trusted endorsement certificate must also answer a challenge, to
prove that its attestation key is in the same TPM as the endorsement key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from bootbridge.errors import BootbridgeError

CHANNEL_BINDING_BYTES = 32
# Larger evidence is refused unread: quotes and certificate chains are far smaller.
EVIDENCE_BYTES_MAX = 64 * 1024


class EvidenceRefused(BootbridgeError):
    """Evidence was checked and refused; the text may be shown to both sides."""


class EvidenceUnavailable(BootbridgeError):
    """This side cannot produce its evidence now: a busy or broken device, a missing file."""


@dataclass(frozen=True)
class AttestedPeer:
    """What a verifier accepted as proven about the peer."""

    kind: str
    # The kind and the key that proved it, constant for one machine: see trust/identity.py.
    identity: str = ""
    # Further facts, for the audit log and the policy: {"pcr15": "00…", "subject": "CN=…", "token": "id"}.
    facts: Mapping[str, str] = field(default_factory=dict)
    # Measurements that did not match where the policy has `warnOnly`.
    warnings: tuple[str, ...] = ()


def _nothing() -> None:
    """The default of both callbacks."""


@dataclass(frozen=True)
class Requester:
    """The peer that evidence is produced for, where a slow device serves many."""

    # What shares are counted by: `wire.addresses.source_of` its address. Empty: this program itself.
    source: str = ""
    # Called when this peer's evidence waits for the device, and when the device starts on it.
    waiting: Callable[[], None] = _nothing
    started: Callable[[], None] = _nothing


PROGRAM: Final = Requester()


class Issuer(Protocol):
    """Produces evidence."""

    kind: str

    async def issue(self, binding: bytes, requester: Requester = PROGRAM) -> bytes:
        """Returns the evidence; raises EvidenceUnavailable."""
        ...

    async def answer(self, binding: bytes, challenge: bytes, requester: Requester = PROGRAM) -> bytes:
        """Answers a verifier's challenge; kinds without challenges raise EvidenceRefused."""
        ...


class Verification(Protocol):
    """The verification of one peer."""

    def verify_evidence(self, evidence: bytes) -> AttestedPeer | bytes:
        """Returns the peer, or a challenge that it must answer first; raises EvidenceRefused."""
        ...

    def verify_answer(self, answer: bytes) -> AttestedPeer:
        """Returns the peer after its answer to the challenge; raises EvidenceRefused."""
        ...


class Verifier(Protocol):
    """Holds the policy for one kind. May be shared between sessions: `begin` one verification for each."""

    kind: str

    def begin(self, binding: bytes) -> Verification: ...


def require_binding(binding: bytes) -> bytes:
    """Returns it if its length is right: evidence for an empty binding would be valid in any session."""
    if len(binding) != CHANNEL_BINDING_BYTES:
        raise EvidenceRefused(f"channel binding of {len(binding)} bytes (expected {CHANNEL_BINDING_BYTES})")
    return binding
