"""The exchange of evidence, without I/O: who says what in which order, and what is refused.

    client                                server
      Hello  ───────────────────────────►
             ◄───────────────────────────  Hello
             ◄───────────────────────────  Evidence
     [Challenge ────────────────────────►
             ◄───────────────────────────  Answer]
      Verdict ──────────────────────────►
      Evidence ─────────────────────────►
             [◄──────────────────────────  Challenge
      Answer ───────────────────────────►]
             ◄───────────────────────────  Verdict

The server shows first, so that a client's evidence is seen only by a server that convinced it. A side that
demands nothing gets empty evidence. Each side is a generator: it yields what is to be done and is sent what
came of it, so that its driver may be a socket or a test.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from bootbridge.errors import PeerError
from bootbridge.trust.attested.binding import NONCE_BYTES, Role, statement
from bootbridge.trust.evidence import (
    DOCUMENT_BYTES_MAX,
    Attested,
    EvidenceRefused,
    EvidenceUnavailable,
    Verifier,
)
from bootbridge.wire.proto import Message, MessageError, at

VERSION: Final = 1
# A document and what is around it.
FRAME_BYTES_MAX: Final = DOCUMENT_BYTES_MAX + 4096
KINDS_MAX: Final = 16
KIND_CHARACTERS_MAX: Final = 64
# A reason is for people; what is beyond is cut off, by both sides.
REASON_CHARACTERS_MAX: Final = 500


# --- what is said


@dataclass(frozen=True, slots=True)
class Hello(Message):
    version: int = at(1, 0)
    nonce: bytes = at(2, b"")
    shows: str = at(3, "")
    accepts: tuple[str, ...] = at(4, ())


@dataclass(frozen=True, slots=True)
class Evidence(Message):
    """Empty if the peer demands none, or if there is none of a kind that it accepts."""

    kind: str = at(1, "")
    document: bytes = at(2, b"", secret=True)


@dataclass(frozen=True, slots=True)
class Challenge(Message):
    question: bytes = at(1, b"", secret=True)


@dataclass(frozen=True, slots=True)
class Answer(Message):
    answer: bytes = at(1, b"", secret=True)


@dataclass(frozen=True, slots=True)
class Verdict(Message):
    """On the evidence shown last; a negative one may also come at any other point, and ends the exchange."""

    convinced: bool = at(1, False)
    reason: str = at(2, "")


@dataclass(frozen=True, slots=True)
class Frame(Message):
    """Exactly one is set."""

    hello: Hello | None = at(1, None)
    evidence: Evidence | None = at(2, None)
    challenge: Challenge | None = at(3, None)
    answer: Answer | None = at(4, None)
    verdict: Verdict | None = at(5, None)

    def content(self) -> Message:
        found = [
            each
            for each in (self.hello, self.evidence, self.challenge, self.answer, self.verdict)
            if each is not None
        ]
        if len(found) != 1:
            raise MessageError(f"a frame with {len(found)} messages")
        return found[0]


# --- what is to be done


@dataclass(frozen=True)
class Say:
    """Send this frame."""

    frame: bytes


@dataclass(frozen=True)
class Hear:
    """Wait for a frame, and send it in."""


@dataclass(frozen=True)
class Prove:
    """Have the issuer speak about the statement, or answer the challenge, and send in its document.

    EvidenceUnavailable and EvidenceRefused are to be thrown in.
    """

    statement: bytes
    challenge: bytes | None = None


Step: TypeAlias = Say | Hear | Prove
Exchange: TypeAlias = Generator[Step, Any, Attested | None]
Heard = TypeVar("Heard", bound=Message)
Finding = TypeVar("Finding", Attested, Attested | bytes)


class ExchangeFailed(PeerError):
    """The peer does not speak this protocol, or gave up; nothing was said about anybody's evidence."""


@dataclass(frozen=True)
class Terms:
    """What one side brings along. ``called`` is how the peer is named in errors."""

    label: str
    nonce: bytes
    server_key: bytes
    shows: str
    verifiers: Sequence[Verifier]
    called: str

    def hello(self) -> Hello:
        return Hello(VERSION, self.nonce, self.shows, tuple(verifier.kind for verifier in self.verifiers))


def client(terms: Terms) -> Exchange:
    """Ends with what the server proved: None if nothing was demanded."""
    return (yield from _courteous(terms, _client(terms)))


def server(terms: Terms) -> Exchange:
    """Ends with what the client proved: None if nothing was demanded."""
    return (yield from _courteous(terms, _server(terms)))


def _client(terms: Terms) -> Exchange:
    yield _say(terms.hello())
    hello = yield from _hear_hello(terms)
    nonces = (terms.nonce, hello.nonce)
    peer = yield from _judge(terms, "server", nonces, hello)
    yield from _prove(terms, "client", nonces, hello)
    return peer


def _server(terms: Terms) -> Exchange:
    hello = yield from _hear_hello(terms)
    yield _say(terms.hello())
    nonces = (hello.nonce, terms.nonce)
    yield from _prove(terms, "server", nonces, hello)
    return (yield from _judge(terms, "client", nonces, hello))


class _Fault(Exception):
    """What the peer did wrong."""


def _courteous(terms: Terms, exchange: Exchange) -> Exchange:
    """A peer that breaks the protocol is told how: it may be one of our own, of another version."""
    try:
        return (yield from exchange)
    except _Fault as fault:
        yield _say(Verdict(False, str(fault)))
        raise ExchangeFailed(f"{terms.called} broke the exchange: {fault}") from None


# --- the steps


def _hear_hello(terms: Terms) -> Generator[Step, Any, Hello]:
    hello = yield from _hear(terms, Hello)
    if hello.version != VERSION:
        raise _Fault(f"version {hello.version} of the exchange is not spoken here, only {VERSION}")
    if len(hello.nonce) != NONCE_BYTES:
        raise _Fault(f"a nonce of {len(hello.nonce)} bytes, not {NONCE_BYTES}")
    if hello.nonce == terms.nonce:
        raise _Fault("a nonce that was sent back")
    if len(hello.accepts) > KINDS_MAX:
        raise _Fault(f"more than {KINDS_MAX} kinds of evidence")
    if any(len(kind) > KIND_CHARACTERS_MAX for kind in (hello.shows, *hello.accepts)):
        raise _Fault("a kind of evidence with too long a name")
    return hello


def _prove(terms: Terms, role: Role, nonces: tuple[bytes, bytes], hello: Hello) -> Generator[Step, Any, None]:
    subject = statement(terms.label, role, *nonces, terms.server_key)
    # Nothing is made, and nothing told about this machine, that the peer has no use for.
    wanted = bool(terms.shows) and terms.shows in hello.accepts
    yield _say(Evidence(terms.shows, (yield from _proof(subject))) if wanted else Evidence())
    heard: Message = yield from _hear(terms, Verdict, Challenge)
    if isinstance(heard, Challenge):
        if not wanted:
            raise _Fault("a challenge to no evidence")
        yield _say(Answer((yield from _proof(subject, heard.question))))
        heard = yield from _hear(terms, Verdict)
    assert isinstance(heard, Verdict)
    if not heard.convinced:
        raise EvidenceRefused(f"{terms.called} refused our evidence: {_told(heard.reason)}")


def _proof(subject: bytes, challenge: bytes | None = None) -> Generator[Step, Any, bytes]:
    try:
        document: bytes = yield Prove(subject, challenge)
    except (EvidenceUnavailable, EvidenceRefused):
        # What is wrong with this machine is its operator's business, not the peer's.
        yield _say(Verdict(False, "the evidence cannot be made now"))
        raise
    return document


def _judge(terms: Terms, role: Role, nonces: tuple[bytes, bytes], hello: Hello) -> Exchange:
    subject = statement(terms.label, role, *nonces, terms.server_key)
    evidence = yield from _hear(terms, Evidence)
    try:
        peer = yield from _verify(terms, subject, evidence, hello)
    except EvidenceRefused as refusal:
        reason = str(refusal)[:REASON_CHARACTERS_MAX]
        yield _say(Verdict(False, reason))
        raise EvidenceRefused(f"{terms.called}'s evidence was refused: {reason}") from refusal
    yield _say(Verdict(True))
    return peer


def _verify(terms: Terms, subject: bytes, evidence: Evidence, hello: Hello) -> Exchange:
    if not terms.verifiers:
        if evidence.kind or evidence.document:
            raise EvidenceRefused("nobody asked for it")
        return None
    accepted = {verifier.kind: verifier for verifier in terms.verifiers}
    demanded = f"demanded is {' or '.join(accepted)}"
    if not evidence.kind:
        lack = f"there is only {_told(hello.shows)}" if hello.shows else "there is none"
        raise EvidenceRefused(f"{lack}, {demanded}")
    if evidence.kind not in accepted:
        raise EvidenceRefused(f"it is {_told(evidence.kind[:KIND_CHARACTERS_MAX])}, {demanded}")
    verification = accepted[evidence.kind].begin(subject)
    finding = _finding(verification.document, evidence.document)
    if isinstance(finding, Attested):
        return finding
    yield _say(Challenge(finding))
    answer = yield from _hear(terms, Answer)
    return _finding(verification.answered, answer.answer)


def _finding(look: Callable[[bytes], Finding], document: bytes) -> Finding:
    if len(document) > DOCUMENT_BYTES_MAX:
        raise EvidenceRefused(f"it is too large, {len(document)} bytes")
    try:
        return look(document)
    except EvidenceRefused:
        raise
    except Exception as error:
        # Documents are the peer's: one that trips a verifier must neither convince nor end the process.
        raise EvidenceRefused(f"it cannot be read ({type(error).__name__})") from error


# --- frames


def _say(message: Message) -> Say:
    only: dict[str, Any] = {type(message).__name__.lower(): message}
    return Say(Frame(**only).encode())


def _hear(terms: Terms, *wanted: type[Heard]) -> Generator[Step, Any, Heard]:
    body: bytes = yield Hear()
    try:
        message = Frame.decode(body).content()
    except MessageError as error:
        raise _Fault(str(error)) from None
    if isinstance(message, wanted):
        return message
    if isinstance(message, Verdict) and not message.convinced:
        raise ExchangeFailed(f"{terms.called} gave up: {_told(message.reason)}")
    expected = " or ".join(each.__name__ for each in wanted)
    raise _Fault(f"{type(message).__name__} where {expected} was due")


def _told(text: str) -> str:
    """What a peer says, fit for one line."""
    short = text[:REASON_CHARACTERS_MAX]
    return short if short.isprintable() else repr(short)
