"""The init listener bounds what unauthenticated clients can use: TPM quotes and connection time."""

from __future__ import annotations

import asyncio

import pytest

from bootbridge.node.init import listener
from bootbridge.node.init.listener import INIT_LIMITS, Admitted, open_init_listener
from bootbridge.node.init.messages import INIT, INIT_LABEL
from bootbridge.runtime.grpc import GrpcClient, Handler, RpcError, Send
from bootbridge.trust.attested.channel import Attestation, AttestedChannel, connect
from bootbridge.trust.evidence import PROGRAM, Requester
from bootbridge.trust.evidence.token import TokenIssuer, TokenVerifier
from bootbridge.wire import grpc_messages as grpc
from tests.support.process_program import free_port

SECRET = b"0123456789abcdef0123456789abcdef"


class SlowChip:
    """An issuer that takes as long as the test wants, and counts concurrent quotes."""

    kind = "token"

    def __init__(self) -> None:
        self._token = TokenIssuer("dev", SECRET)
        self.under_way = self.most = 0
        self.free = asyncio.Event()

    async def issue(self, statement: bytes, requester: Requester = PROGRAM) -> bytes:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.free.wait()
        self.under_way -= 1
        return await self._token.issue(statement, requester)

    async def answer(self, statement: bytes, challenge: bytes, requester: Requester = PROGRAM) -> bytes:
        raise AssertionError("no challenge is expected")


async def connected(port: int) -> AttestedChannel:
    required = Attestation(verifiers=(TokenVerifier({"dev": SECRET}),))
    return await connect("127.0.0.1", port, label=INIT_LABEL, attestation=required)


async def test_concurrent_handshakes_are_bounded_so_that_the_join_can_use_the_tpm() -> None:
    """Every connection costs a quote before the client has proven anything."""
    chip = SlowChip()
    port = free_port()
    opened = await open_init_listener(chip, "127.0.0.1", port, lambda source, admitted: {})
    at_once = INIT_LIMITS.per_source(INIT_LIMITS.handshakes)
    clients = [asyncio.create_task(connected(port)) for _ in range(at_once + 4)]
    async with asyncio.timeout(20):
        while chip.under_way < at_once:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        chip.free.set()
        for channel in await asyncio.gather(*clients):
            await channel.close()
    await opened.stop()
    assert chip.most == at_once


async def test_an_unauthenticated_client_is_disconnected_after_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls that never end could otherwise occupy all connections."""
    monkeypatch.setattr(listener, "UNAUTHENTICATED_SECONDS_MAX", 0.05)

    async def init(body: bytes, send: Send) -> None:
        await asyncio.Event().wait()

    port = free_port()
    sources: list[str] = []

    def handlers(source: str, admitted: Admitted) -> dict[str, Handler]:
        sources.append(source)
        return {INIT: init}

    opened = await open_init_listener(TokenIssuer("dev", SECRET), "127.0.0.1", port, handlers)
    channel = await connected(port)
    async with GrpcClient(channel.reader, channel.writer) as caller:
        with pytest.raises(RpcError) as cut:
            await caller.unary(INIT, b"a guess", 20)
    assert cut.value.code == grpc.UNAVAILABLE
    assert sources == ["127.0.0.1"]
    await opened.stop()


async def test_a_client_that_has_sent_the_secret_has_no_time_limit() -> None:
    async with asyncio.timeout(listener.UNAUTHENTICATED_SECONDS_MAX) as limit:
        await asyncio.sleep(0)
        listener._remove_limit(limit)
        assert limit.when() is None
