"""Attacks on attested channels: each ends without a channel and does not affect others."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from bootbridge.trust.attested.channel import (
    AdmissionLimits,
    Attestation,
    AttestedChannel,
    AttestedListener,
    ChannelFailed,
)
from bootbridge.trust.attested.exchange import VERSION, AttestationResult, Frame, Hello
from bootbridge.trust.attested.session_key import ALPN, SessionKey, client_context
from bootbridge.trust.evidence import PROGRAM, EvidenceRefused, Requester
from tests.support.attested import (
    CLIENT_KEY,
    MUTUAL_CLIENT,
    MUTUAL_SERVER,
    SERVER_KEY,
    TIMEOUT_SECONDS,
    SealIssuer,
    SealVerifier,
    connected,
    dial,
    echo,
    echoes,
    listening,
)


class UnreachableHandler:
    def __init__(self) -> None:
        self.reached = 0

    async def __call__(self, channel: AttestedChannel) -> None:
        self.reached += 1


# --- man in the middle


@asynccontextmanager
async def man_in_the_middle(listener: AttestedListener) -> AsyncIterator[int]:
    """Terminates TLS on both sides, with its own key, and forwards every byte."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await asyncio.open_connection("127.0.0.1", listener.port, ssl=client_context())
        await asyncio.gather(copy(reader, onward[1]), copy(onward[0], writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=SessionKey.create().context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("client", "server", "refused"),
    [
        (MUTUAL_CLIENT, MUTUAL_SERVER, "the server's evidence was refused: the seal is broken"),
        (
            Attestation(None, (SealVerifier(SERVER_KEY),)),
            Attestation(SealIssuer(SERVER_KEY)),
            "the server's evidence was refused: the seal is broken",
        ),
        (
            Attestation(SealIssuer(CLIENT_KEY)),
            Attestation(None, (SealVerifier(CLIENT_KEY),)),
            "the server refused our evidence: the seal is broken",
        ),
    ],
    ids=["mutual", "server only", "client only"],
)
async def test_relayed_evidence_is_refused_by_both_sides(
    client: Attestation, server: Attestation, refused: str
) -> None:
    """It is bound to the TLS key of its connection, which the man in the middle does not have."""
    handler = UnreachableHandler()
    async with listening(server, handler) as listener, man_in_the_middle(listener) as port:
        with pytest.raises(EvidenceRefused) as caught:
            await dial(port, client)
        assert str(caught.value) == refused
    assert handler.reached == 0


class Replay(SealIssuer):
    def __init__(self, recorded: bytes) -> None:
        super().__init__(b"")
        self.recorded = recorded

    async def issue(self, binding: bytes, requester: Requester = PROGRAM) -> bytes:
        return self.recorded


class Recording(SealIssuer):
    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.documents: list[bytes] = []

    async def issue(self, binding: bytes, requester: Requester = PROGRAM) -> bytes:
        self.documents.append(await super().issue(binding, requester))
        return self.documents[-1]


async def test_evidence_of_an_earlier_connection_is_refused() -> None:
    client, server = Recording(CLIENT_KEY), Recording(SERVER_KEY)
    async with (
        listening(Attestation(server, MUTUAL_SERVER.verifiers)) as listener,
        connected(listener, Attestation(client, MUTUAL_CLIENT.verifiers)) as channel,
    ):
        assert await echoes(channel)
    async with listening(MUTUAL_SERVER, UnreachableHandler()) as listener:
        with pytest.raises(EvidenceRefused, match="the server refused our evidence"):
            await dial(listener.port, Attestation(Replay(client.documents[0]), MUTUAL_CLIENT.verifiers))
    async with listening(
        Attestation(Replay(server.documents[0]), MUTUAL_SERVER.verifiers), UnreachableHandler()
    ) as listener:
        with pytest.raises(EvidenceRefused, match="the server's evidence was refused"):
            await dial(listener.port, MUTUAL_CLIENT)


async def test_a_server_refuses_its_own_evidence() -> None:
    """Peers with one key for both roles: evidence of the server role is refused in the client role."""
    peers = Attestation(SealIssuer(SERVER_KEY), (SealVerifier(SERVER_KEY),))
    handler = UnreachableHandler()
    async with listening(peers, handler) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=client_context())
        await send_frame(writer, Frame(hello=Hello(VERSION, b"n" * 32, "seal", ("seal",))))
        await receive_frame(reader)
        own = await receive_frame(reader)
        assert own.evidence is not None
        await send_frame(writer, Frame(result=AttestationResult(True)))
        await send_frame(writer, own)
        assert (await receive_frame(reader)).result == AttestationResult(False, "the seal is broken")
        writer.close()
    assert handler.reached == 0


async def send_frame(writer: asyncio.StreamWriter, frame: Frame) -> None:
    body = frame.encode()
    writer.write(len(body).to_bytes(4, "big") + body)
    await writer.drain()


async def receive_frame(reader: asyncio.StreamReader) -> Frame:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        size = int.from_bytes(await reader.readexactly(4), "big")
        return Frame.decode(await reader.readexactly(size))


@pytest.mark.parametrize("nonce", [b"", b"short", b"n" * 31], ids=["none", "short", "one byte short"])
async def test_no_evidence_is_sent_for_an_incomplete_nonce(nonce: bytes) -> None:
    """Evidence over an empty or guessable nonce could be replayed in a later session."""
    issuer = SealIssuer(SERVER_KEY)
    async with listening(Attestation(issuer), UnreachableHandler()) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=client_context())
        await send_frame(writer, Frame(hello=Hello(VERSION, nonce, "", ("seal",))))
        result = (await receive_frame(reader)).result
        assert result is not None
        assert "nonce" in result.reason
        writer.close()
    assert issuer.issued == []


# --- TLS


def tls_handshake(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLSession | None, bool]:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as plain,
        context.wrap_socket(plain, session=session) as secured,
    ):
        body = Frame(hello=Hello(VERSION, b"n" * 32)).encode()
        secured.sendall(len(body).to_bytes(4, "big") + body)
        secured.recv(1)  # a ticket would arrive before this byte
        return secured.session, bool(secured.session_reused)


async def test_a_session_cannot_be_resumed() -> None:
    """A resumed session has no certificate, and so no key to which evidence is bound."""
    context = client_context()
    async with listening(Attestation(SealIssuer(SERVER_KEY)), UnreachableHandler()) as listener:
        session, _ = await asyncio.to_thread(tls_handshake, listener.port, context)
        assert session is None or not session.has_ticket
        _, reused = await asyncio.to_thread(tls_handshake, listener.port, context, session)
        assert not reused


def context_with(**settings: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([ALPN])
    for name, value in settings.items():
        setattr(context, name, value)
    return context


async def test_tls_below_1_3_is_refused() -> None:
    async with listening(MUTUAL_SERVER, UnreachableHandler()) as listener:
        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(
                tls_handshake, listener.port, context_with(maximum_version=ssl.TLSVersion.TLSv1_2)
            )


@pytest.mark.parametrize("protocols", [[], ["h2", "http/1.1"]], ids=["none", "others"])
async def test_a_client_of_another_protocol_gets_no_evidence(protocols: list[str]) -> None:
    """Even if it sends a valid hello: bytes of one protocol must not be valid in another."""
    issuer = SealIssuer(SERVER_KEY)
    context = context_with()
    context.set_alpn_protocols(protocols)
    async with listening(Attestation(issuer), UnreachableHandler()) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=context)
        await send_frame(writer, Frame(hello=Hello(VERSION, b"n" * 32, "", ("seal",))))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), TIMEOUT_SECONDS)
        writer.close()
    assert issuer.issued == []


# --- exhaustion


async def dial_until_connected(port: int) -> AttestedChannel:
    """Retries: a busy machine may miss the short deadline itself."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            try:
                return await dial(port, MUTUAL_CLIENT)
            except ChannelFailed:
                continue


Stall = Callable[[int], Awaitable[asyncio.StreamWriter]]


async def silent(port: int) -> asyncio.StreamWriter:
    return (await asyncio.open_connection("127.0.0.1", port))[1]


async def silent_after_tls(port: int) -> asyncio.StreamWriter:
    return (await asyncio.open_connection("127.0.0.1", port, ssl=client_context()))[1]


async def silent_in_a_frame(port: int) -> asyncio.StreamWriter:
    writer = await silent_after_tls(port)
    writer.write(bytes([0, 0, 1]))
    return writer


async def silent_after_hello(port: int) -> asyncio.StreamWriter:
    writer = await silent_after_tls(port)
    await send_frame(writer, Frame(hello=Hello(VERSION, b"n" * 32, "seal", ("seal",))))
    return writer


@pytest.mark.parametrize("stall", [silent, silent_after_tls, silent_in_a_frame, silent_after_hello])
async def test_a_stalled_handshake_ends_at_the_deadline(stall: Stall) -> None:
    """The next connection in the queue is admitted."""
    async with listening(
        MUTUAL_SERVER, limits=AdmissionLimits(handshakes=1), handshake_seconds=0.2
    ) as listener:
        writer = await stall(listener.port)
        channel = await dial_until_connected(listener.port)
        assert await echoes(channel)
        await channel.close()
        writer.transport.abort()


async def test_many_silent_connections_of_one_source_do_not_block_others() -> None:
    """Their deadline is far away, so a connection of another source is not admitted because they expired."""
    limits = AdmissionLimits(handshakes=4, channels=8, waiting=16)
    async with listening(MUTUAL_SERVER, limits=limits, handshake_seconds=100 * TIMEOUT_SECONDS) as listener:
        other_source = ("127.0.0.2", 0)
        silent_connections = [
            await asyncio.open_connection("127.0.0.1", listener.port, local_addr=other_source)
            for _ in range(40)
        ]
        channel = await dial(listener.port, MUTUAL_CLIENT)
        assert await echoes(channel)
        await channel.close()
        for _, writer in silent_connections:
            writer.transport.abort()


async def test_waiting_connections_are_closed_when_the_listener_stops() -> None:
    async with listening(MUTUAL_SERVER, limits=AdmissionLimits(handshakes=1)) as listener:
        waiting = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(3)]
        await listener.stop()
        for reader, writer in waiting:
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), TIMEOUT_SECONDS) == b""
            writer.close()


class ConcurrencyCounter:
    """Counts concurrent entries; each waits until the expected number has entered."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._may_leave = asyncio.Event()

    async def __aenter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    async def __aexit__(self, *_: object) -> None:
        await self._may_leave.wait()
        self.now -= 1

    async def held(self, number: int, *, while_waiting: int, at: AttestedListener) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (self.now, at._queue.waiting) != (number, while_waiting):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        self._may_leave.set()


async def test_concurrent_handshakes_are_limited() -> None:
    """Further ones wait in the queue and are admitted later."""
    counter = ConcurrencyCounter()

    class Counting(SealIssuer):
        async def issue(self, binding: bytes, requester: Requester = PROGRAM) -> bytes:
            async with counter:
                return await super().issue(binding, requester)

    server = Attestation(Counting(SERVER_KEY), MUTUAL_SERVER.verifiers)
    async with listening(server, limits=AdmissionLimits(handshakes=2, share=1.0)) as listener:
        dialled = asyncio.gather(*(dial(listener.port, MUTUAL_CLIENT) for _ in range(8)))
        await counter.held(2, while_waiting=6, at=listener)
        channels = await dialled
        assert all(await asyncio.gather(*map(echoes, channels)))
        await asyncio.gather(*(channel.close() for channel in channels))
    assert counter.most == 2


async def test_concurrent_channels_are_limited() -> None:
    """Further ones wait until one is closed."""
    counter = ConcurrencyCounter()

    async def handle(channel: AttestedChannel) -> None:
        async with counter:
            await echo(channel)

    async def use_channel(listener: AttestedListener) -> bool:
        async with connected(listener, MUTUAL_CLIENT) as channel:
            return await echoes(channel)

    async with listening(MUTUAL_SERVER, handle, limits=AdmissionLimits(channels=2, share=1.0)) as listener:
        uses = asyncio.gather(*(use_channel(listener) for _ in range(8)))
        await counter.held(2, while_waiting=6, at=listener)
        assert all(await uses)
    assert counter.most == 2


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(300), b""],
    ids=["HTTP", "invalid TLS", "closed at once"],
)
async def test_invalid_connections_are_logged_at_level_debug_only(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Load balancers probe the port every few seconds."""
    caplog.set_level(logging.DEBUG, "bootbridge.attested")
    async with listening(MUTUAL_SERVER) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(sent)
        if not sent:
            writer.close()
        try:
            await asyncio.wait_for(reader.read(), TIMEOUT_SECONDS)
        except ConnectionError:
            pass
        writer.close()
        async with connected(listener, MUTUAL_CLIENT) as channel:
            assert await echoes(channel)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not any(record.name == "bootbridge.attested" for record in caplog.records):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    ours = [record for record in caplog.records if record.name == "bootbridge.attested"]
    assert [record.levelno for record in ours] == [logging.DEBUG]


async def test_a_frame_that_is_too_large_is_not_read() -> None:
    async with listening(MUTUAL_SERVER, UnreachableHandler()) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=client_context())
        writer.write(b"\x7f\xff\xff\xff")
        assert await asyncio.wait_for(reader.read(), TIMEOUT_SECONDS) == b""
        writer.close()


# --- logs


async def test_evidence_is_not_in_logs_and_errors(caplog: pytest.LogCaptureFixture) -> None:
    """Neither of accepted nor of refused peers."""
    caplog.set_level(logging.DEBUG)
    client, other, server = Recording(CLIENT_KEY), Recording(b"another key"), Recording(SERVER_KEY)
    errors = []
    async with listening(Attestation(server, MUTUAL_SERVER.verifiers)) as listener:
        async with connected(listener, Attestation(client, MUTUAL_CLIENT.verifiers)) as channel:
            assert await echoes(channel)
        with pytest.raises(EvidenceRefused) as caught:
            await dial(listener.port, Attestation(other, MUTUAL_CLIENT.verifiers))
        errors.append(caught.value)
    written = str([vars(record) for record in caplog.records]) + repr(errors)
    assert "evidence refused" in written
    for document in (*client.documents, *other.documents, *server.documents):
        assert repr(document)[2:-1] not in written
        assert document.hex() not in written
        assert base64.b64encode(document).decode() not in written
