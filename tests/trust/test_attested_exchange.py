"""The exchange of evidence as a state machine, without a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.trust.attested import exchange
from bootbridge.trust.attested.channel_binding import channel_binding
from bootbridge.trust.attested.exchange import (
    VERSION,
    Answer,
    AttestationResult,
    Challenge,
    Evidence,
    Exchange,
    ExchangeFailed,
    ExchangeParameters,
    Frame,
    Hello,
    ProduceEvidence,
    ReceiveFrame,
    SendFrame,
)
from bootbridge.trust.evidence import (
    EVIDENCE_BYTES_MAX,
    AttestedPeer,
    EvidenceRefused,
    EvidenceUnavailable,
)
from bootbridge.wire.proto import Message
from tests.support.attested import CLIENT_KEY, OTHER_KEY, SERVER_KEY, SealVerifier, seal

KEY = b"the session's key"
CLIENT_NONCE, SERVER_NONCE = b"c" * 32, b"s" * 32
OURS = (SealVerifier(SERVER_KEY),)
THEIRS = (SealVerifier(CLIENT_KEY),)
CLIENT = ExchangeParameters("label", CLIENT_NONCE, KEY, "seal", OURS, "the server")
SERVER = ExchangeParameters("label", SERVER_NONCE, KEY, "seal", THEIRS, "the client")


def framed(message: Message) -> bytes:
    return Frame.of(message).encode()


@dataclass
class End:
    """One side of an exchange, with the frames it sent and its result."""

    exchange: Exchange
    key: bytes
    fault: Exception | None = None

    def __post_init__(self) -> None:
        self.sent: list[bytes] = []
        self.over = False
        self.peer: AttestedPeer | None = None
        self.failure: Exception | None = None
        self._wants: ProduceEvidence | ReceiveFrame | None = None
        self._go(lambda: next(self.exchange))

    def hear(self, frame: bytes) -> None:
        assert isinstance(self._wants, ReceiveFrame)
        self._go(lambda: self.exchange.send(frame))

    def _go(self, resume: Callable[[], Any]) -> None:
        try:
            step = resume()
            while not isinstance(step, ReceiveFrame):
                step = self._done(step)
            self._wants = step
        except StopIteration as end:
            self.over, self.peer = True, end.value
        except (EvidenceRefused, EvidenceUnavailable, ExchangeFailed) as error:
            self.over, self.failure = True, error

    def _done(self, step: Any) -> Any:
        if isinstance(step, SendFrame):
            self.sent.append(step.frame)
            return next(self.exchange)
        if self.fault is not None:
            return self.exchange.throw(self.fault)
        return self.exchange.send(seal(self.key, step.binding + (step.challenge or b"")))

    def last_words(self) -> Message:
        return Frame.decode(self.sent[-1]).content()


Change = Callable[[int, bytes], bytes]


def converse(
    client: ExchangeParameters = CLIENT,
    server: ExchangeParameters = SERVER,
    *,
    client_key: bytes = CLIENT_KEY,
    server_key: bytes = SERVER_KEY,
    client_fault: Exception | None = None,
    server_fault: Exception | None = None,
    to_client: Change = lambda number, frame: frame,
    to_server: Change = lambda number, frame: frame,
) -> tuple[End, End]:
    """Passes frames between both sides until none is left; the changes modify frames on the way."""
    one = End(exchange.client(client), client_key, client_fault)
    other = End(exchange.server(server), server_key, server_fault)
    counts = {id(one): 0, id(other): 0}
    while True:
        for speaker, listener, change in ((one, other, to_server), (other, one, to_client)):
            number = counts[id(speaker)]
            if number < len(speaker.sent) and not listener.over:
                counts[id(speaker)] += 1
                listener.hear(change(number, speaker.sent[number]))
                break
        else:
            return one, other


def refusals(ends: tuple[End, End]) -> list[str]:
    assert all(isinstance(end.failure, EvidenceRefused) for end in ends), [end.failure for end in ends]
    return [str(end.failure) for end in ends]


# --- accepted evidence


@pytest.mark.parametrize("client_presents", [True, False])
@pytest.mark.parametrize("server_presents", [True, False])
def test_each_side_gets_the_evidence_that_it_requires_only(
    client_presents: bool, server_presents: bool
) -> None:
    """A side without verifiers receives no evidence, even if the other side has some."""
    one, other = converse(
        replace(CLIENT, verifiers=OURS if server_presents else ()),
        replace(SERVER, verifiers=THEIRS if client_presents else ()),
    )
    assert (one.failure, other.failure) == (None, None)
    assert (one.peer is not None, other.peer is not None) == (server_presents, client_presents)
    shown = [Frame.decode(frame).evidence for frame in (*other.sent, *one.sent)]
    assert [bool(evidence.kind) for evidence in shown if evidence] == [server_presents, client_presents]


@pytest.mark.parametrize("client_challenges", [True, False])
@pytest.mark.parametrize("server_challenges", [True, False])
def test_a_verifier_may_send_one_challenge(client_challenges: bool, server_challenges: bool) -> None:
    def verifiers(key: bytes, asks: bool) -> tuple[SealVerifier, ...]:
        return (SealVerifier(key, challenge=b"who?" if asks else b""),)

    one, other = converse(
        replace(CLIENT, verifiers=verifiers(SERVER_KEY, client_challenges)),
        replace(SERVER, verifiers=verifiers(CLIENT_KEY, server_challenges)),
    )
    assert one.peer is not None
    assert other.peer is not None
    assert one.peer.facts == {"by": "answer" if client_challenges else "document"}
    assert other.peer.facts == {"by": "answer" if server_challenges else "document"}


def test_the_verifier_of_the_presented_kind_is_used() -> None:
    several = (SealVerifier(OTHER_KEY, "other"), *OURS, SealVerifier(OTHER_KEY, "third"))
    one, _ = converse(replace(CLIENT, verifiers=several))
    assert one.peer == AttestedPeer("seal", facts={"by": "document"})


def test_the_server_presents_its_evidence_first() -> None:
    """Only an accepted server receives the evidence of the client."""
    one, _ = converse(server_key=OTHER_KEY)
    assert not any(Frame.decode(frame).evidence for frame in one.sent)


# --- refused evidence


def test_wrong_evidence_is_refused_with_a_reason_for_both_sides() -> None:
    assert refusals(converse(server_key=OTHER_KEY)) == [
        "the server's evidence was refused: the seal is broken",
        "the client refused our evidence: the seal is broken",
    ]
    assert refusals(converse(client_key=OTHER_KEY)) == [
        "the server refused our evidence: the seal is broken",
        "the client's evidence was refused: the seal is broken",
    ]


def test_a_wrong_answer_to_a_challenge_is_refused() -> None:
    asking = replace(CLIENT, verifiers=(SealVerifier(SERVER_KEY, challenge=b"who?"),))

    def forge(number: int, frame: bytes) -> bytes:
        return framed(Answer(b"forged")) if Frame.decode(frame).answer else frame

    one, _ = converse(asking, to_client=forge)
    assert str(one.failure) == "the server's evidence was refused: the seal is broken"


@pytest.mark.parametrize("presents", ["", "other"])
def test_missing_evidence_and_other_kinds_are_refused(presents: str) -> None:
    lack = "only other available" if presents else "none available"
    assert refusals(converse(server=replace(SERVER, presents=presents))) == [
        f"the server's evidence was refused: no evidence presented, {lack} (accepted: seal)",
        f"the client refused our evidence: no evidence presented, {lack} (accepted: seal)",
    ]
    assert refusals(converse(replace(CLIENT, presents=presents))) == [
        f"the server refused our evidence: no evidence presented, {lack} (accepted: seal)",
        f"the client's evidence was refused: no evidence presented, {lack} (accepted: seal)",
    ]


def test_a_relabelled_kind_is_refused() -> None:
    def relabel(number: int, frame: bytes) -> bytes:
        evidence = Frame.decode(frame).evidence
        return framed(replace(evidence, kind="weak")) if evidence else frame

    one, _ = converse(to_client=relabel)
    reason = "kind of evidence not accepted: weak (accepted: seal)"
    assert str(one.failure) == f"the server's evidence was refused: {reason}"


def test_a_modified_hello_does_not_remove_the_requirement() -> None:
    """The modified hellos require no evidence."""

    def undemanding(number: int, frame: bytes) -> bytes:
        hello = Frame.decode(frame).hello
        return framed(replace(hello, accepts=())) if hello else frame

    one, _ = converse(to_client=undemanding, to_server=undemanding)
    assert isinstance(one.failure, EvidenceRefused)
    assert one.peer is None


def test_unrequested_evidence_is_refused() -> None:
    def intrusive(number: int, frame: bytes) -> bytes:
        return framed(Evidence("seal", b"look!")) if Frame.decode(frame).evidence else frame

    one, _ = converse(replace(CLIENT, verifiers=()), to_client=intrusive)
    assert isinstance(one.failure, EvidenceRefused)


def test_reflected_evidence_is_refused() -> None:
    """Both ends have the same key here; evidence of the server role is still refused in the client role."""
    both = (SealVerifier(SERVER_KEY),)
    other = End(exchange.server(replace(SERVER, verifiers=both)), SERVER_KEY)
    other.hear(framed(replace(CLIENT, verifiers=both).hello()))
    own = other.sent[-1]
    assert Frame.decode(own).evidence is not None
    other.hear(framed(AttestationResult(True)))
    other.hear(own)
    assert str(other.failure) == "the client's evidence was refused: the seal is broken"


@pytest.mark.parametrize(
    "change",
    [{"label": "another use"}, {"server_key": b"another session's key"}],
    ids=["label", "key"],
)
def test_evidence_of_another_session_is_refused(change: dict[str, Any]) -> None:
    refusals(converse(replace(CLIENT, **change)))
    assert isinstance(converse(replace(CLIENT, verifiers=(), **change))[1].failure, EvidenceRefused)


def test_evidence_that_is_too_large_is_refused_without_a_verification() -> None:
    huge = framed(Evidence("seal", bytes(EVIDENCE_BYTES_MAX + 1)))
    one, _ = converse(to_client=lambda number, frame: huge if Frame.decode(frame).evidence else frame)
    assert "too large" in str(one.failure)


def test_an_exception_in_a_verifier_refuses_the_evidence() -> None:
    class Clumsy(SealVerifier):
        def begin(self, binding: bytes) -> Any:
            verification = super().begin(binding)
            verification.verify_evidence = lambda evidence: evidence.decode("ascii")[9999]  # type: ignore[method-assign,assignment,return-value]
            return verification

    one, other = converse(replace(CLIENT, verifiers=(Clumsy(SERVER_KEY),)))
    assert "malformed evidence (UnicodeDecodeError)" in str(one.failure)
    assert isinstance(other.failure, EvidenceRefused)


def test_a_reason_is_truncated_to_one_line() -> None:
    other = End(exchange.server(SERVER), SERVER_KEY)
    other.hear(framed(CLIENT.hello()))
    other.hear(framed(AttestationResult(False, "two\nlines" + "x" * 10_000)))
    assert "\n" not in str(other.failure)
    assert len(str(other.failure)) < 700


def test_unavailable_evidence_ends_the_exchange_on_both_sides() -> None:
    """The peer does not get the error of this machine."""
    broken = EvidenceUnavailable("/dev/tpmrm0 does not answer")
    one, other = converse(server_fault=broken)
    assert other.failure is broken
    assert str(one.failure) == "the server gave up: evidence unavailable"
    one, other = converse(client_fault=broken)
    assert one.failure is broken
    assert str(other.failure) == "the client gave up: evidence unavailable"


# --- protocol violations


@pytest.mark.parametrize(
    ("hello", "fault"),
    [
        (Hello(1, CLIENT_NONCE), "unsupported version 1 (supported: 2)"),
        (Hello(), "version 0"),
        (Hello(VERSION, b""), "invalid nonce of 0 bytes"),
        (Hello(VERSION, b"c" * 31), "invalid nonce of 31 bytes"),
        (Hello(VERSION, b"c" * 33), "invalid nonce of 33 bytes"),
        (Hello(VERSION, SERVER_NONCE), "reflected nonce"),
        (Hello(VERSION, CLIENT_NONCE, "", ("x",) * 17), "more than 16 kinds"),
        (Hello(VERSION, CLIENT_NONCE, "x" * 65), "with more than 64 characters"),
        (Hello(VERSION, CLIENT_NONCE, "", ("x" * 65,)), "with more than 64 characters"),
    ],
)
def test_an_invalid_hello_gets_no_evidence(hello: Hello, fault: str) -> None:
    """Evidence over an empty nonce could be replayed."""
    other = End(exchange.server(SERVER), SERVER_KEY)
    other.hear(framed(hello))
    assert fault in str(other.failure)
    assert [Frame.decode(frame).content() for frame in other.sent] == [other.last_words()]
    assert isinstance(other.last_words(), AttestationResult)


def test_a_reflected_hello_gets_no_evidence() -> None:
    one = End(exchange.client(CLIENT), CLIENT_KEY)
    one.hear(one.sent[0])
    assert "reflected nonce" in str(one.failure)


EVERY_KIND: list[Message] = [
    SERVER.hello(),
    Evidence(),
    Evidence("seal", seal(OTHER_KEY, b"")),
    Challenge(b"?"),
    Answer(b"!"),
    AttestationResult(True),
    AttestationResult(False, "no"),
]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from([framed(message) for message in EVERY_KIND]) | st.binary(max_size=40), max_size=8
    ),
    st.booleans(),
)
def test_arbitrary_frames_are_never_accepted(frames: list[bytes], as_client: bool) -> None:
    """Frames in any order and arbitrary bytes end in an error of the protocol, or not at all."""
    end = End(exchange.server(SERVER), SERVER_KEY) if as_client else End(exchange.client(CLIENT), CLIENT_KEY)
    for frame in frames:
        if end.over:
            break
        end.hear(frame)
    assert end.peer is None
    assert not end.over or end.failure is not None


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 5), st.integers(0, 200), st.integers(1, 255), st.booleans())
def test_a_flipped_bit_never_changes_the_result(which: int, at: int, mask: int, towards_client: bool) -> None:
    """Either the exchange fails, or both sides get the evidence that they require."""

    def change(number: int, frame: bytes) -> bytes:
        if number != which or not frame:
            return frame
        position = at % len(frame)
        return frame[:position] + bytes([frame[position] ^ mask]) + frame[position + 1 :]

    ends = converse(**{"to_client" if towards_client else "to_server": change})  # type: ignore[arg-type]
    for end in ends:
        assert end.failure is not None or not end.over or end.peer is not None


def test_a_challenge_without_evidence_is_a_violation() -> None:
    other = End(exchange.server(replace(SERVER, presents="")), SERVER_KEY)
    other.hear(framed(CLIENT.hello()))
    other.hear(framed(Challenge(b"?")))
    assert "Challenge although no evidence" in str(other.failure)


def test_a_second_challenge_is_a_violation() -> None:
    """Further challenges would let a peer use the TPM as an oracle."""
    other = End(exchange.server(SERVER), SERVER_KEY)
    other.hear(framed(CLIENT.hello()))
    other.hear(framed(Challenge(b"1")))
    other.hear(framed(Challenge(b"2")))
    assert "unexpected Challenge (expected AttestationResult)" in str(other.failure)


def test_evidence_is_not_in_repr() -> None:
    shown = repr([Evidence("seal", b"hidden"), Challenge(b"hidden"), Answer(b"hidden")])
    assert "hidden" not in shown


def test_both_sides_compute_the_same_channel_bindings() -> None:
    """Each about its own role, with the client's nonce first."""
    bound: list[bytes] = []

    class Listening(SealVerifier):
        def begin(self, binding: bytes) -> Any:
            bound.append(binding)
            return super().begin(binding)

    converse(
        replace(CLIENT, verifiers=(Listening(SERVER_KEY),)),
        replace(SERVER, verifiers=(Listening(CLIENT_KEY),)),
    )
    nonces = (CLIENT_NONCE, SERVER_NONCE)
    assert bound == [
        channel_binding("label", "server", *nonces, KEY),
        channel_binding("label", "client", *nonces, KEY),
    ]
