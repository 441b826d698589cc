"""Evidence that tests can read: a seal is a MAC over the statement, made with a key that both sides know."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bootbridge.trust.attested.channel import Channel, Listener, Side, connect
from bootbridge.trust.evidence import Attested, EvidenceRefused

LABEL = "a test"
PATIENCE = 20.0


def seal(key: bytes, statement: bytes) -> bytes:
    return hmac.digest(key, statement, "sha256")


class SealIssuer:
    def __init__(self, key: bytes, kind: str = "seal") -> None:
        self.kind = kind
        self._key = key
        self.issued: list[bytes] = []  # every statement spoken about

    async def issue(self, statement: bytes) -> bytes:
        self.issued.append(statement)
        return seal(self._key, statement)

    async def answer(self, statement: bytes, challenge: bytes) -> bytes:
        return seal(self._key, statement + challenge)


class SealVerifier:
    """With a question it is convinced only by the answer."""

    def __init__(self, key: bytes, kind: str = "seal", *, question: bytes = b"") -> None:
        self.kind = kind
        self.key = key
        self.question = question

    def begin(self, statement: bytes) -> SealVerification:
        return SealVerification(self, statement)


class SealVerification:
    def __init__(self, verifier: SealVerifier, statement: bytes) -> None:
        self._verifier = verifier
        self._statement = statement

    def document(self, document: bytes) -> Attested | bytes:
        self._require(document, self._statement)
        return self._verifier.question or Attested(self._verifier.kind, facts={"by": "document"})

    def answered(self, answer: bytes) -> Attested:
        self._require(answer, self._statement + self._verifier.question)
        return Attested(self._verifier.kind, facts={"by": "answer"})

    def _require(self, shown: bytes, subject: bytes) -> None:
        if not hmac.compare_digest(shown, seal(self._verifier.key, subject)):
            raise EvidenceRefused("the seal is broken")


CLIENT_KEY, SERVER_KEY, OTHER_KEY = b"the client's key", b"the server's key", b"somebody's key"
# Both ends show evidence and demand it.
MUTUAL_CLIENT = Side(SealIssuer(CLIENT_KEY), (SealVerifier(SERVER_KEY),))
MUTUAL_SERVER = Side(SealIssuer(SERVER_KEY), (SealVerifier(CLIENT_KEY),))


async def echo(channel: Channel) -> None:
    while data := await channel.reader.read(1000):
        channel.writer.write(data)
        await channel.writer.drain()


@asynccontextmanager
async def listening(
    side: Side | Callable[[], Side],
    handle: Callable[[Channel], Awaitable[None]] = echo,
    *,
    host: str = "127.0.0.1",
    **options: Any,
) -> AsyncIterator[Listener]:
    """A listener; afterwards it is stopped, and no task of it is left."""
    ask = (lambda: side) if isinstance(side, Side) else side
    listener = await Listener.open(host, 0, label=LABEL, side=ask, handle=handle, **options)
    try:
        yield listener
    finally:
        await listener.stop(0)
        assert all(task.done() for task in listener._accepting)
        assert not listener._shaking | listener._handling


@asynccontextmanager
async def connected(
    listener: Listener, side: Side, *, host: str = "127.0.0.1", label: str = LABEL
) -> AsyncIterator[Channel]:
    channel = await connect(host, listener.port, label=label, side=side, timeout=PATIENCE)
    try:
        yield channel
    finally:
        await channel.close()


async def heard_back(channel: Channel, words: bytes = b"hello") -> bool:
    channel.writer.write(words)
    return await asyncio.wait_for(channel.reader.readexactly(len(words)), PATIENCE) == words
