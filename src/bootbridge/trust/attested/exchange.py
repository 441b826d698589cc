"""The exchange of evidence after the TLS handshake, without I/O.

    client                                server
      Hello  ───────────────────────────►
             ◄───────────────────────────  Hello
             ◄───────────────────────────  Evidence
     [Challenge ────────────────────────►
             ◄───────────────────────────  Answer]
      AttestationResult ────────────────►
      Evidence ─────────────────────────►
             [◄──────────────────────────  Challenge
      Answer ───────────────────────────►]
             ◄───────────────────────────  AttestationResult

The server presents its evidence first, so that only an accepted server sees the client's. A side that
requires no evidence receives an empty message. Each side is a generator that yields `ExchangeStep`s and is
sent their results, so that a socket or a test can drive it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from bootbridge.errors import PeerError
from bootbridge.trust.attested.channel_binding import NONCE_BYTES, EndpointRole, channel_binding
from bootbridge.trust.evidence import (
    EVIDENCE_BYTES_MAX,
    AttestedPeer,
    EvidenceRefused,
    EvidenceUnavailable,
    Verifier,
)
from bootbridge.wire.proto import Message, MessageError, at

# Version 2: format 2 of TPM evidence.
VERSION: Final = 2
# The evidence and the fields around it.
FRAME_BYTES_MAX: Final = EVIDENCE_BYTES_MAX + 4096
KINDS_MAX: Final = 16
KIND_CHARACTERS_MAX: Final = 64
# Reasons are for people; both sides cut off the rest.
REASON_CHARACTERS_MAX: Final = 500


# --- messages


@dataclass(frozen=True, slots=True)
class Hello(Message):
    version: int = at(1, 0)
    nonce: bytes = at(2, b"")
    presents: str = at(3, "")  # a kind of evidence
    accepts: tuple[str, ...] = at(4, ())


@dataclass(frozen=True, slots=True)
class Evidence(Message):
    """Empty if the peer requires none, or accepts no kind that this side has."""

    kind: str = at(1, "")
    document: bytes = at(2, b"", secret=True)


@dataclass(frozen=True, slots=True)
class Challenge(Message):
    challenge: bytes = at(1, b"", secret=True)


@dataclass(frozen=True, slots=True)
class Answer(Message):
    answer: bytes = at(1, b"", secret=True)


@dataclass(frozen=True, slots=True)
class AttestationResult(Message):
    """About the evidence presented last. A negative result may come at any point and ends the exchange."""

    accepted: bool = at(1, False)
    reason: str = at(2, "")


@dataclass(frozen=True, slots=True)
class Frame(Message):
    """Exactly one field is set."""

    hello: Hello | None = at(1, None)
    evidence: Evidence | None = at(2, None)
    challenge: Challenge | None = at(3, None)
    answer: Answer | None = at(4, None)
    result: AttestationResult | None = at(5, None)

    @classmethod
    def of(cls, message: Message) -> Frame:
        field = "result" if isinstance(message, AttestationResult) else type(message).__name__.lower()
        content: dict[str, Any] = {field: message}
        return cls(**content)

    def content(self) -> Message:
        found = [
            each
            for each in (self.hello, self.evidence, self.challenge, self.answer, self.result)
            if each is not None
        ]
        if len(found) != 1:
            raise MessageError(f"frame with {len(found)} messages")
        return found[0]


# --- steps for the driver


@dataclass(frozen=True)
class SendFrame:
    frame: bytes


@dataclass(frozen=True)
class ReceiveFrame:
    """The driver sends in the next frame."""


@dataclass(frozen=True)
class ProduceEvidence:
    """The driver sends in the issuer's evidence for the channel binding, or its answer to the challenge.

    It throws in EvidenceUnavailable and EvidenceRefused.
    """

    binding: bytes
    challenge: bytes | None = None


ExchangeStep: TypeAlias = SendFrame | ReceiveFrame | ProduceEvidence
Exchange: TypeAlias = Generator[ExchangeStep, Any, AttestedPeer | None]
Received = TypeVar("Received", bound=Message)
Verified = TypeVar("Verified", AttestedPeer, AttestedPeer | bytes)


class ExchangeFailed(PeerError):
    """The peer violated the protocol or gave up; no evidence was refused."""


@dataclass(frozen=True)
class ExchangeParameters:
    """The input of one side. ``presents`` is a kind of evidence, ``peer_name`` names the peer in errors."""

    label: str
    nonce: bytes
    server_key: bytes
    presents: str
    verifiers: Sequence[Verifier]
    peer_name: str

    def hello(self) -> Hello:
        return Hello(VERSION, self.nonce, self.presents, tuple(verifier.kind for verifier in self.verifiers))


def client(parameters: ExchangeParameters) -> Exchange:
    """Returns what the server proved, None if no evidence was required."""
    return (yield from _reporting_violations(parameters, _client(parameters)))


def server(parameters: ExchangeParameters) -> Exchange:
    """Returns what the client proved, None if no evidence was required."""
    return (yield from _reporting_violations(parameters, _server(parameters)))


def _client(parameters: ExchangeParameters) -> Exchange:
    yield _send(parameters.hello())
    hello = yield from _receive_hello(parameters)
    nonces = (parameters.nonce, hello.nonce)
    peer = yield from _verify_peer(parameters, "server", nonces, hello)
    yield from _present_evidence(parameters, "client", nonces, hello)
    return peer


def _server(parameters: ExchangeParameters) -> Exchange:
    hello = yield from _receive_hello(parameters)
    yield _send(parameters.hello())
    nonces = (hello.nonce, parameters.nonce)
    yield from _present_evidence(parameters, "server", nonces, hello)
    return (yield from _verify_peer(parameters, "client", nonces, hello))


class _ProtocolViolation(Exception):
    """By the peer."""


def _reporting_violations(parameters: ExchangeParameters, exchange: Exchange) -> Exchange:
    """Sends the peer what it did wrong: it may be another version of this program."""
    try:
        return (yield from exchange)
    except _ProtocolViolation as violation:
        yield _send(AttestationResult(False, str(violation)))
        raise ExchangeFailed(f"{parameters.peer_name} violated the protocol: {violation}") from None


def _receive_hello(parameters: ExchangeParameters) -> Generator[ExchangeStep, Any, Hello]:
    hello = yield from _receive(parameters, Hello)
    if hello.version != VERSION:
        raise _ProtocolViolation(f"unsupported version {hello.version} (supported: {VERSION})")
    if len(hello.nonce) != NONCE_BYTES:
        raise _ProtocolViolation(f"invalid nonce of {len(hello.nonce)} bytes (expected {NONCE_BYTES})")
    if hello.nonce == parameters.nonce:
        raise _ProtocolViolation("reflected nonce")
    if len(hello.accepts) > KINDS_MAX:
        raise _ProtocolViolation(f"more than {KINDS_MAX} kinds of evidence")
    if any(len(kind) > KIND_CHARACTERS_MAX for kind in (hello.presents, *hello.accepts)):
        raise _ProtocolViolation(f"a kind of evidence with more than {KIND_CHARACTERS_MAX} characters")
    return hello


def _present_evidence(
    parameters: ExchangeParameters, role: EndpointRole, nonces: tuple[bytes, bytes], hello: Hello
) -> Generator[ExchangeStep, Any, None]:
    binding = channel_binding(parameters.label, role, *nonces, parameters.server_key)
    # Evidence describes this machine: it is produced and sent only to a peer that accepts its kind.
    wanted = bool(parameters.presents) and parameters.presents in hello.accepts
    yield _send(Evidence(parameters.presents, (yield from _produce(binding))) if wanted else Evidence())
    message: Message = yield from _receive(parameters, AttestationResult, Challenge)
    if isinstance(message, Challenge):
        if not wanted:
            raise _ProtocolViolation("Challenge although no evidence was presented")
        yield _send(Answer((yield from _produce(binding, message.challenge))))
        message = yield from _receive(parameters, AttestationResult)
    assert isinstance(message, AttestationResult)
    if not message.accepted:
        raise EvidenceRefused(f"{parameters.peer_name} refused our evidence: {_printable(message.reason)}")


def _produce(binding: bytes, challenge: bytes | None = None) -> Generator[ExchangeStep, Any, bytes]:
    try:
        document: bytes = yield ProduceEvidence(binding, challenge)
    except (EvidenceUnavailable, EvidenceRefused):
        # The details are for this machine's operator, not for the peer.
        yield _send(AttestationResult(False, "evidence unavailable"))
        raise
    return document


def _verify_peer(
    parameters: ExchangeParameters, role: EndpointRole, nonces: tuple[bytes, bytes], hello: Hello
) -> Exchange:
    binding = channel_binding(parameters.label, role, *nonces, parameters.server_key)
    evidence = yield from _receive(parameters, Evidence)
    try:
        peer = yield from _verify(parameters, binding, evidence, hello)
    except EvidenceRefused as refusal:
        reason = str(refusal)[:REASON_CHARACTERS_MAX]
        yield _send(AttestationResult(False, reason))
        raise EvidenceRefused(f"{parameters.peer_name}'s evidence was refused: {reason}") from refusal
    yield _send(AttestationResult(True))
    return peer


def _verify(parameters: ExchangeParameters, binding: bytes, evidence: Evidence, hello: Hello) -> Exchange:
    if not parameters.verifiers:
        if evidence.kind or evidence.document:
            raise EvidenceRefused("unrequested evidence")
        return None
    verifiers = {verifier.kind: verifier for verifier in parameters.verifiers}
    required = f"(accepted: {', '.join(verifiers)})"
    if not evidence.kind:
        available = f"only {_printable(hello.presents)} available" if hello.presents else "none available"
        raise EvidenceRefused(f"no evidence presented, {available} {required}")
    if evidence.kind not in verifiers:
        kind = _printable(evidence.kind[:KIND_CHARACTERS_MAX])
        raise EvidenceRefused(f"kind of evidence not accepted: {kind} {required}")
    verification = verifiers[evidence.kind].begin(binding)
    verified = _contained(verification.verify_evidence, evidence.document)
    if isinstance(verified, AttestedPeer):
        return verified
    yield _send(Challenge(verified))
    answer = yield from _receive(parameters, Answer)
    return _contained(verification.verify_answer, answer.answer)


def _contained(verify: Callable[[bytes], Verified], document: bytes) -> Verified:
    """Calls a verifier; its unexpected errors refuse the evidence, as the peer chose the input."""
    if len(document) > EVIDENCE_BYTES_MAX:
        raise EvidenceRefused(f"evidence too large: {len(document)} bytes (at most {EVIDENCE_BYTES_MAX})")
    try:
        return verify(document)
    except EvidenceRefused:
        raise
    except Exception as error:
        raise EvidenceRefused(f"malformed evidence ({type(error).__name__})") from error


# --- frames


def _send(message: Message) -> SendFrame:
    return SendFrame(Frame.of(message).encode())


def _receive(
    parameters: ExchangeParameters, *expected: type[Received]
) -> Generator[ExchangeStep, Any, Received]:
    body: bytes = yield ReceiveFrame()
    try:
        message = Frame.decode(body).content()
    except MessageError as error:
        raise _ProtocolViolation(str(error)) from None
    if isinstance(message, expected):
        return message
    if isinstance(message, AttestationResult) and not message.accepted:
        raise ExchangeFailed(f"{parameters.peer_name} gave up: {_printable(message.reason)}")
    names = " or ".join(each.__name__ for each in expected)
    raise _ProtocolViolation(f"unexpected {type(message).__name__} (expected {names})")


def _printable(text: str) -> str:
    """Returns a peer's text fit for one log line."""
    short = text[:REASON_CHARACTERS_MAX]
    return short if short.isprintable() else repr(short)
