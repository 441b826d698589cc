"""Test evidence: a MAC over the binding, with a key that both sides know."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bootbridge.trust.attested.channel import Attestation, AttestedChannel, AttestedListener, connect
from bootbridge.trust.evidence import PROGRAM, AttestedPeer, EvidenceRefused, Requester

LABEL = "a test"
TIMEOUT_SECONDS = 20.0


def seal(key: bytes, binding: bytes) -> bytes:
    return hmac.digest(key, binding, "sha256")


class SealIssuer:
    def __init__(self, key: bytes, kind: str = "seal") -> None:
        self.kind = kind
        self._key = key
        self.issued: list[bytes] = []  # the binding of each issued document

    async def issue(self, binding: bytes, requester: Requester = PROGRAM) -> bytes:
        self.issued.append(binding)
        return seal(self._key, binding)

    async def answer(self, binding: bytes, challenge: bytes, requester: Requester = PROGRAM) -> bytes:
        return seal(self._key, binding + challenge)


class SealVerifier:
    """With a challenge it accepts only a valid answer."""

    def __init__(self, key: bytes, kind: str = "seal", *, challenge: bytes = b"") -> None:
        self.kind = kind
        self.key = key
        self.challenge = challenge

    def begin(self, binding: bytes) -> SealVerification:
        return SealVerification(self, binding)


class SealVerification:
    def __init__(self, verifier: SealVerifier, binding: bytes) -> None:
        self._verifier = verifier
        self._binding = binding

    def verify_evidence(self, evidence: bytes) -> AttestedPeer | bytes:
        self._require(evidence, self._binding)
        return self._verifier.challenge or AttestedPeer(self._verifier.kind, facts={"by": "document"})

    def verify_answer(self, answer: bytes) -> AttestedPeer:
        self._require(answer, self._binding + self._verifier.challenge)
        return AttestedPeer(self._verifier.kind, facts={"by": "answer"})

    def _require(self, shown: bytes, subject: bytes) -> None:
        if not hmac.compare_digest(shown, seal(self._verifier.key, subject)):
            raise EvidenceRefused("the seal is broken")


CLIENT_KEY, SERVER_KEY, OTHER_KEY = b"the client's key", b"the server's key", b"another key"
# Both sides present evidence and require it.
MUTUAL_CLIENT = Attestation(SealIssuer(CLIENT_KEY), (SealVerifier(SERVER_KEY),))
MUTUAL_SERVER = Attestation(SealIssuer(SERVER_KEY), (SealVerifier(CLIENT_KEY),))


async def echo(channel: AttestedChannel) -> None:
    while data := await channel.reader.read(1000):
        channel.writer.write(data)
        await channel.writer.drain()


@asynccontextmanager
async def listening(
    side: Attestation | Callable[[], Attestation],
    handle: Callable[[AttestedChannel], Awaitable[None]] = echo,
    *,
    host: str = "127.0.0.1",
    **options: Any,
) -> AsyncIterator[AttestedListener]:
    """Opens a listener, stops it afterwards and checks that no task is left."""
    attestation = (lambda: side) if isinstance(side, Attestation) else side
    listener = await AttestedListener.open(
        host, 0, label=LABEL, attestation=attestation, handle=handle, **options
    )
    try:
        yield listener
    finally:
        await listener.stop(0)
        assert all(task.done() for task in listener._accepting)
        assert not listener._handshaking | listener._handling


async def dial(
    port: int, side: Attestation, *, host: str = "127.0.0.1", label: str = LABEL
) -> AttestedChannel:
    return await connect(host, port, label=label, attestation=side, timeout=TIMEOUT_SECONDS)


@asynccontextmanager
async def connected(
    listener: AttestedListener, side: Attestation, *, host: str = "127.0.0.1", label: str = LABEL
) -> AsyncIterator[AttestedChannel]:
    channel = await dial(listener.port, side, host=host, label=label)
    try:
        yield channel
    finally:
        await channel.close()


async def echoes(channel: AttestedChannel, words: bytes = b"hello") -> bool:
    channel.writer.write(words)
    return await asyncio.wait_for(channel.reader.readexactly(len(words)), TIMEOUT_SECONDS) == words
