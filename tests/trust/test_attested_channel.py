"""Attested channels over real sockets: accepted and refused evidence, errors, limits and stopping."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from cryptography import x509

from bootbridge.errors import LocalError, OperatorError
from bootbridge.runtime.grpc import GrpcClient, Send, serve
from bootbridge.trust.attested import channel as channel_module
from bootbridge.trust.attested import handshake
from bootbridge.trust.attested.channel import (
    Attestation,
    AttestedChannel,
    AttestedListener,
    ChannelFailed,
    connect,
)
from bootbridge.trust.attested.session_key import SessionKey, public_key_of
from bootbridge.trust.authority import Authority
from bootbridge.trust.evidence import PROGRAM, AttestedPeer, EvidenceRefused, EvidenceUnavailable, Requester
from bootbridge.trust.evidence.x509 import Usage, X509Issuer, X509Verifier
from tests.support.attested import (
    CLIENT_KEY,
    LABEL,
    MUTUAL_CLIENT,
    MUTUAL_SERVER,
    OTHER_KEY,
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
from tests.support.fake_clock import pass_time

SERVER_WITH_EVIDENCE = Attestation(SealIssuer(SERVER_KEY))
CLIENT_WITH_EVIDENCE = Attestation(SealIssuer(CLIENT_KEY))
CLIENT_THAT_VERIFIES = Attestation(None, (SealVerifier(SERVER_KEY),))
SERVER_THAT_VERIFIES = Attestation(None, (SealVerifier(CLIENT_KEY),))
TWO_SERVER_VERIFIERS = (SealVerifier(OTHER_KEY, "other"), SealVerifier(SERVER_KEY))
TWO_CLIENT_VERIFIERS = (SealVerifier(OTHER_KEY, "other"), SealVerifier(CLIENT_KEY))


class Peers:
    """A handler that records its attested peers."""

    def __init__(self) -> None:
        self.seen: list[AttestedPeer | None] = []

    async def __call__(self, channel: AttestedChannel) -> None:
        self.seen.append(channel.peer)
        await echo(channel)


# --- accepted and refused evidence


@pytest.mark.parametrize(
    ("client", "server", "seen_by_client", "seen_by_server"),
    [
        pytest.param(CLIENT_THAT_VERIFIES, SERVER_WITH_EVIDENCE, True, False, id="the server is attested"),
        pytest.param(
            Attestation(None, TWO_SERVER_VERIFIERS),
            SERVER_WITH_EVIDENCE,
            True,
            False,
            id="by one of two verifiers",
        ),
        pytest.param(CLIENT_WITH_EVIDENCE, SERVER_WITH_EVIDENCE, False, False, id="no evidence required"),
        pytest.param(CLIENT_WITH_EVIDENCE, SERVER_THAT_VERIFIES, False, True, id="the client is attested"),
        pytest.param(
            CLIENT_WITH_EVIDENCE,
            Attestation(None, TWO_CLIENT_VERIFIERS),
            False,
            True,
            id="the client, by one of two",
        ),
        pytest.param(MUTUAL_CLIENT, MUTUAL_SERVER, True, True, id="both are attested"),
        pytest.param(
            Attestation(SealIssuer(CLIENT_KEY), TWO_SERVER_VERIFIERS),
            Attestation(SealIssuer(SERVER_KEY), TWO_CLIENT_VERIFIERS),
            True,
            True,
            id="both, by one of two",
        ),
        pytest.param(Attestation(), Attestation(), False, False, id="no evidence at all"),
    ],
)
async def test_accepted_evidence_gives_a_channel(
    client: Attestation, server: Attestation, seen_by_client: bool, seen_by_server: bool
) -> None:
    peers = Peers()
    async with listening(server, peers) as listener, connected(listener, client) as channel:
        assert await echoes(channel)
        assert channel.peer_address == "127.0.0.1"
        assert [channel.peer is not None, *(peer is not None for peer in peers.seen)] == [
            seen_by_client,
            seen_by_server,
        ]


@pytest.mark.parametrize(
    ("client", "server", "error"),
    [
        pytest.param(
            Attestation(None, (SealVerifier(OTHER_KEY),)),
            SERVER_WITH_EVIDENCE,
            "the server's evidence was refused: the seal is broken",
            id="the client refuses the evidence",
        ),
        pytest.param(
            Attestation(None, (SealVerifier(SERVER_KEY, "other"),)),
            SERVER_WITH_EVIDENCE,
            "the server's evidence was refused: no evidence presented, only seal available (accepted: other)",
            id="the client does not accept the kind",
        ),
        pytest.param(
            CLIENT_THAT_VERIFIES,
            Attestation(),
            "the server's evidence was refused: no evidence presented, none available (accepted: seal)",
            id="the server has no evidence",
        ),
        pytest.param(
            CLIENT_WITH_EVIDENCE,
            Attestation(None, (SealVerifier(OTHER_KEY),)),
            "the server refused our evidence: the seal is broken",
            id="the server refuses the evidence",
        ),
        pytest.param(
            CLIENT_WITH_EVIDENCE,
            Attestation(None, (SealVerifier(CLIENT_KEY, "other"),)),
            "the server refused our evidence: no evidence presented, only seal available (accepted: other)",
            id="the server does not accept the kind",
        ),
        pytest.param(
            Attestation(),
            SERVER_THAT_VERIFIES,
            "the server refused our evidence: no evidence presented, none available (accepted: seal)",
            id="the client has no evidence",
        ),
        pytest.param(
            CLIENT_THAT_VERIFIES,
            MUTUAL_SERVER,
            "the server refused our evidence: no evidence presented, none available (accepted: seal)",
            id="mutual, the client has no evidence",
        ),
        pytest.param(
            MUTUAL_CLIENT,
            SERVER_THAT_VERIFIES,
            "the server's evidence was refused: no evidence presented, none available (accepted: seal)",
            id="mutual, the server has no evidence",
        ),
        pytest.param(
            Attestation(SealIssuer(OTHER_KEY), (SealVerifier(SERVER_KEY),)),
            MUTUAL_SERVER,
            "the server refused our evidence: the seal is broken",
            id="mutual, the server refuses the evidence",
        ),
        pytest.param(
            MUTUAL_CLIENT,
            Attestation(SealIssuer(OTHER_KEY), (SealVerifier(CLIENT_KEY),)),
            "the server's evidence was refused: the seal is broken",
            id="mutual, the client refuses the evidence",
        ),
    ],
)
async def test_refused_evidence_gives_the_reason_to_both_sides(
    client: Attestation, server: Attestation, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets an error, the server logs it; the handler is not called."""
    peers = Peers()
    async with listening(server, peers) as listener:
        with pytest.raises(EvidenceRefused) as caught:
            await dial(listener.port, client)
    assert str(caught.value) == error
    assert peers.seen == []
    (record,) = [record for record in caplog.records if record.message == "evidence refused"]
    reason = error.partition(": ")[2]
    assert str(record.fields["reason"]).endswith(f": {reason}")  # type: ignore[attr-defined]


async def test_errors_use_the_peers_name() -> None:
    async with listening(SERVER_THAT_VERIFIES) as listener:
        with pytest.raises(EvidenceRefused, match="the join service refused our evidence"):
            await connect(
                "127.0.0.1",
                listener.port,
                label=LABEL,
                attestation=Attestation(),
                peer_name="the join service",
            )


async def test_evidence_for_another_label_is_refused() -> None:
    async with listening(MUTUAL_SERVER) as listener:
        with pytest.raises(EvidenceRefused):
            await dial(listener.port, MUTUAL_CLIENT, label="another use")


async def test_certificates_as_evidence() -> None:
    """The key of the certificate is the identity of the peer."""
    authority = Authority.create("nodes")
    roots = [x509.load_pem_x509_certificate(authority.cert_pem)]

    def issuer(usage: Usage) -> X509Issuer:
        issued = (
            authority.issue_client("node") if usage is Usage.CLIENT else authority.issue_server(["server"])
        )
        return X509Issuer.from_pem(issued.cert_pem, issued.key_pem)

    client = Attestation(issuer(Usage.CLIENT), (X509Verifier(roots, usage=Usage.SERVER),))
    server = Attestation(issuer(Usage.SERVER), (X509Verifier(roots, usage=Usage.CLIENT),))
    peers = Peers()
    async with listening(server, peers) as listener:
        async with connected(listener, client) as channel:
            assert await echoes(channel)
            assert channel.peer is not None
            assert [channel.peer.identity, *(peer.identity for peer in peers.seen if peer)] == [
                server.issuer.identity,  # type: ignore[union-attr]
                client.issuer.identity,  # type: ignore[union-attr]
            ]
        other = Authority.create("nodes").issue_client("node")
        side = Attestation(X509Issuer.from_pem(other.cert_pem, other.key_pem), client.verifiers)
        with pytest.raises(EvidenceRefused, match="the server refused our evidence"):
            await dial(listener.port, side)


# --- concurrency


async def test_one_side_serves_fifteen_clients_at_the_same_time() -> None:
    async with listening(MUTUAL_SERVER) as listener, AsyncExitStack() as stack:
        opening = (stack.enter_async_context(connected(listener, MUTUAL_CLIENT)) for _ in range(15))
        channels = await asyncio.gather(*opening)
        assert all(await asyncio.gather(*map(echoes, channels)))


async def test_one_side_serves_ten_servers_at_the_same_time() -> None:
    async with AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(listening(MUTUAL_SERVER)) for _ in range(10)]
        opening = (stack.enter_async_context(connected(each, MUTUAL_CLIENT)) for each in listeners)
        channels = await asyncio.gather(*opening)
        assert all(await asyncio.gather(*map(echoes, channels)))


async def test_every_connection_has_a_new_key_and_channel_binding() -> None:
    issuer = SealIssuer(SERVER_KEY)
    keys = set()
    async with listening(Attestation(issuer)) as listener:
        for _ in range(5):
            async with connected(listener, CLIENT_THAT_VERIFIES) as channel:
                keys.add(channel.writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    assert len(keys) == 5
    assert len(set(issuer.issued)) == 5


async def test_a_reused_context_presents_the_new_key_only() -> None:
    async with listening(Attestation(SealIssuer(SERVER_KEY))) as listener, AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(connected(listener, CLIENT_THAT_VERIFIES)) for _ in range(5)
        ]
        sessions = [each.writer.get_extra_info("ssl_object") for each in channels]
        assert len({public_key_of(each.getpeercert(binary_form=True)) for each in sessions}) == 5
        assert all(await asyncio.gather(*map(echoes, channels)))
    first = SessionKey.create()
    first.recycle_context()
    second = SessionKey.create()
    assert second.context is first.context
    assert second.public != first.public
    assert (second.context.num_tickets, second.context.options & ssl.OP_NO_TICKET) == (0, ssl.OP_NO_TICKET)


def test_session_keys_from_many_threads_are_distinct() -> None:
    for _ in range(4):
        SessionKey.create().recycle_context()
    with ThreadPoolExecutor(16) as threads:
        keys = list(threads.map(lambda _: SessionKey.create(), range(64)))
    assert len({key.public for key in keys}) == len({id(key.context) for key in keys}) == 64


async def test_connections_in_the_handshake_and_in_use_are_counted() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handle(channel: AttestedChannel) -> None:
        entered.set()
        await leave.wait()

    async with listening(MUTUAL_SERVER, handle) as listener:
        assert listener.connections == 0
        _, silent = await asyncio.open_connection("127.0.0.1", listener.port)
        async with connected(listener, MUTUAL_CLIENT) as channel:
            await asyncio.wait_for(entered.wait(), TIMEOUT_SECONDS)
            assert listener.connections == 2
            leave.set()
            assert await channel.reader.read() == b""
        silent.close()
        await listener.stop()
        assert listener.connections == 0


async def test_a_slow_issuer_does_not_delay_others() -> None:
    class Slow(SealIssuer):
        def __init__(self, key: bytes) -> None:
            super().__init__(key)
            self.busy, self.done = asyncio.Event(), asyncio.Event()

        async def issue(self, binding: bytes, requester: Requester = PROGRAM) -> bytes:
            self.busy.set()
            await self.done.wait()
            return await super().issue(binding, requester)

    slow = Slow(CLIENT_KEY)
    async with listening(MUTUAL_SERVER) as listener:
        waiting = asyncio.ensure_future(dial(listener.port, Attestation(slow, MUTUAL_CLIENT.verifiers)))
        await slow.busy.wait()
        async with connected(listener, MUTUAL_CLIENT) as channel:
            assert await echoes(channel)
        slow.done.set()
        await (await waiting).close()


async def test_a_changed_policy_applies_to_the_next_connection() -> None:
    sides = [MUTUAL_SERVER]
    async with listening(lambda: sides[-1]) as listener, connected(listener, MUTUAL_CLIENT) as channel:
        assert await echoes(channel)
        sides.append(Attestation(SealIssuer(SERVER_KEY), (SealVerifier(OTHER_KEY),)))
        with pytest.raises(EvidenceRefused):
            await dial(listener.port, MUTUAL_CLIENT)
        assert await echoes(channel)  # accepted before the change


def test_two_verifiers_of_one_kind_are_an_error() -> None:
    """It would be undefined which of them decides."""
    with pytest.raises(LocalError, match="two verifiers of one kind"):
        Attestation(None, (SealVerifier(SERVER_KEY), SealVerifier(OTHER_KEY)))


# --- transport and errors


async def test_grpc_over_a_channel() -> None:
    async def upper(body: bytes, send: Send) -> None:
        await send(body.upper())

    async def handle(channel: AttestedChannel) -> None:
        await serve(channel.reader, channel.writer, {"/upper": upper}, stopping=channel.stopping)

    async with (
        listening(MUTUAL_SERVER, handle) as listener,
        connected(listener, MUTUAL_CLIENT) as channel,
        GrpcClient(channel.reader, channel.writer) as caller,
    ):
        assert await caller.unary("/upper", b"text" * 100_000, TIMEOUT_SECONDS) == b"TEXT" * 100_000


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_listener_without_a_host_accepts_both_ip_families(host: str) -> None:
    async with (
        listening(MUTUAL_SERVER, host="") as listener,
        connected(listener, MUTUAL_CLIENT, host=host) as channel,
    ):
        assert channel.peer_address == host
        assert await echoes(channel)


async def test_both_ends_of_a_channel_set_tcp_nodelay() -> None:
    """With one end only, an exchange of small messages took 50 ms instead of 5."""
    nodelay: list[bool] = []

    def record(channel: AttestedChannel) -> None:
        sock = channel.writer.get_extra_info("socket")
        nodelay.append(bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))

    async def handle(channel: AttestedChannel) -> None:
        record(channel)
        await echo(channel)

    async with listening(MUTUAL_SERVER, handle) as listener, connected(listener, MUTUAL_CLIENT) as channel:
        record(channel)
        assert await echoes(channel)
    assert nodelay == [True, True]


async def test_the_error_names_a_port_in_use() -> None:
    async with listening(MUTUAL_SERVER) as listener:
        with pytest.raises(
            OperatorError, match=rf"127.0.0.1:{listener.port}: cannot listen: Address already"
        ):
            await AttestedListener.open(
                "127.0.0.1", listener.port, label=LABEL, attestation=lambda: MUTUAL_SERVER, handle=echo
            )


@asynccontextmanager
async def tcp_server(greeting: bytes, **options: object) -> AsyncIterator[int]:
    """A server of another protocol: it sends a greeting, or waits, and then only reads."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if greeting:
            writer.write(greeting)
        elif await reader.read(1):
            pass_time(TIMEOUT_SECONDS)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, **options)  # type: ignore[arg-type]
    async with server:
        yield server.sockets[0].getsockname()[1]


async def failure(port: int, *, host: str = "127.0.0.1") -> str:
    with pytest.raises(ChannelFailed) as caught:
        await dial(port, MUTUAL_CLIENT, host=host)
    return str(caught.value)


async def test_the_error_names_the_step_and_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert await failure(port) == f"connecting to 127.0.0.1:{port}: Connection refused"
    assert (await failure(1, host="name.invalid")).startswith("connecting to name.invalid:1: ")
    async with tcp_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert await failure(port) == f"TLS handshake with 127.0.0.1:{port}: wrong version number"
    async with tcp_server(b"") as port:
        assert await failure(port) == f"TLS handshake with 127.0.0.1:{port}: timed out"
    async with tcp_server(b"", ssl=SessionKey.create().context) as port:
        step = f"exchanging evidence with 127.0.0.1:{port}"
        assert await failure(port) == f"{step}: timed out"
    async with tcp_server(b"\xff" * 4, ssl=SessionKey.create().context) as port:
        text = await failure(port)
        assert text.startswith(f"exchanging evidence with 127.0.0.1:{port}: frame too large")


async def test_a_server_of_another_protocol_is_an_error() -> None:
    context = SessionKey.create().context
    context.set_alpn_protocols(["h2"])
    async with tcp_server(b"", ssl=context) as port:
        assert "peer does not support ALPN protocol bootbridge-attested/1" in await failure(port)


async def test_a_closed_connection_during_the_handshake_is_an_error() -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(leave, "127.0.0.1", 0, ssl=SessionKey.create().context)
    async with server:
        assert "connection closed by peer" in await failure(server.sockets[0].getsockname()[1])


async def test_refused_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[asyncio.StreamWriter] = []

    async def close_gracefully(writer: asyncio.StreamWriter) -> None:
        closed.append(writer)
        await handshake.close_gracefully(writer)

    async with listening(SERVER_THAT_VERIFIES) as listener:
        monkeypatch.setattr(channel_module, "close_gracefully", close_gracefully)
        with pytest.raises(EvidenceRefused):
            await dial(listener.port, Attestation(SealIssuer(OTHER_KEY)))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not listener.refusals.refused:  # noqa: ASYNC110 -- changed by another task
                await asyncio.sleep(0.01)
        assert (listener.refusals.refused, listener.refusals.dropped) == (1, 0)
    assert len(closed) == 2, "one by each end"


async def test_unavailable_evidence_is_not_a_refusal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(SealIssuer):
        async def issue(self, binding: bytes, requester: Requester = PROGRAM) -> bytes:
            raise OSError(5, "Input/output error")

    async with listening(MUTUAL_SERVER) as listener:
        side = Attestation(Broken(CLIENT_KEY), MUTUAL_CLIENT.verifiers)
        with pytest.raises(EvidenceUnavailable, match="seal evidence failed: OSError"):
            await dial(listener.port, side)
    async with listening(Attestation(Broken(SERVER_KEY))) as listener:
        with pytest.raises(ChannelFailed, match="the server gave up: evidence unavailable"):
            await dial(listener.port, CLIENT_THAT_VERIFIES)
    assert "seal evidence failed" in str([vars(record) for record in caplog.records])


# --- stopping


async def test_a_stopped_listener_lets_running_handlers_finish() -> None:
    finishing = asyncio.Event()

    async def handle(channel: AttestedChannel) -> None:
        await channel.stopping.wait()
        channel.writer.write(b"bye")
        finishing.set()

    async with listening(MUTUAL_SERVER, handle) as listener, connected(listener, MUTUAL_CLIENT) as channel:
        await listener.stop(TIMEOUT_SECONDS)
        assert finishing.is_set()
        assert await channel.reader.read() == b"bye"
        assert "Connection refused" in await failure(listener.port)


async def test_a_handler_that_does_not_finish_is_cancelled() -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(channel: AttestedChannel) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with listening(MUTUAL_SERVER, handle) as listener, connected(listener, MUTUAL_CLIENT):
        await entered.wait()
        await listener.stop(0.05)
        assert cancelled.is_set()


async def test_a_handshake_is_cancelled_when_its_listener_stops() -> None:
    async with listening(MUTUAL_SERVER) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        async with connected(listener, MUTUAL_CLIENT):
            pass  # the first connection is accepted before this one
        await listener.stop()
        assert await asyncio.wait_for(reader.read(), TIMEOUT_SECONDS) == b""
        writer.close()


async def test_a_failed_handler_closes_only_its_channel(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(channel: AttestedChannel) -> None:
        if await channel.reader.readexactly(1) == b"x":
            raise ValueError("a bug")
        await echo(channel)

    async with listening(MUTUAL_SERVER, handle) as listener:
        async with connected(listener, MUTUAL_CLIENT) as channel:
            channel.writer.write(b"x")
            assert await asyncio.wait_for(channel.reader.read(), TIMEOUT_SECONDS) == b""
        async with connected(listener, MUTUAL_CLIENT) as channel:
            channel.writer.write(b".")
            assert await echoes(channel)
    assert "handler failed" in caplog.messages
