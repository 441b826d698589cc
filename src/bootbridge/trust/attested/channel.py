"""Channels: connections whose ends have shown what they are. `connect` opens one, a `Listener` takes them.

channel = await connect(host, port, label=JOIN_LABEL, side=Side(issuer=mine, verifiers=(theirs,)))
async with Caller(channel.reader, channel.writer) as caller: ...
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bootbridge.errors import BootbridgeError, LocalError
from bootbridge.runtime import logs, tasks
from bootbridge.trust.attested import exchange
from bootbridge.trust.attested.admission_queue import Places, WaitingRoom, source_of
from bootbridge.trust.attested.binding import NONCE_BYTES
from bootbridge.trust.attested.exchange import Terms
from bootbridge.trust.attested.handshake import ChannelFailed, converse, hang_up, session_of, step
from bootbridge.trust.attested.listening_sockets import listening_sockets
from bootbridge.trust.attested.session_key import SessionKey, client_context, key_shown_by
from bootbridge.trust.evidence import Attested, EvidenceRefused, Issuer, Verifier

# In all: a TPM takes a second for a quote, and may be asked by many.
HANDSHAKE_SECONDS_MAX: Final = 30.0
# Of it, until TLS stands: nobody waits for a chip there, so who is slow is silent, or has a very long way.
TLS_SECONDS_MAX: Final = 10.0
STOP_SECONDS_MAX: Final = 10.0
# What is left for a while when the process has no file descriptor to spare.
RETRY_SECONDS: Final = 0.1
# The second address of a name is tried after this, while the first has not answered.
SECOND_ADDRESS_SECONDS: Final = 0.25

__all__ = ["Channel", "ChannelFailed", "Listener", "Places", "Side", "connect"]


@dataclass(frozen=True)
class Side:
    """What one end shows and what it demands; shared by as many connections as one likes.

    Without an issuer nothing is shown, without verifiers nothing is demanded.
    """

    issuer: Issuer | None = None
    verifiers: tuple[Verifier, ...] = ()

    def __post_init__(self) -> None:
        kinds = [verifier.kind for verifier in self.verifiers]
        if len(set(kinds)) < len(kinds):
            raise LocalError(f"two verifiers of one kind: {', '.join(kinds)}")

    def terms(self, label: str, server_key: bytes, called: str) -> Terms:
        shows = self.issuer.kind if self.issuer is not None else ""
        return Terms(label, os.urandom(NONCE_BYTES), server_key, shows, self.verifiers, called)


@dataclass(frozen=True)
class Channel:
    """Ready for use. ``peer`` is what the other end proved, None only if nothing was demanded of it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    peer: Attested | None
    peer_address: str
    # Set when the listener that it came from stops; `serve` takes it.
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def close(self) -> None:
        await hang_up(self.writer)


async def connect(
    host: str,
    port: int,
    *,
    label: str,
    side: Side,
    timeout: float = HANDSHAKE_SECONDS_MAX,  # noqa: ASYNC109
    called: str = "the server",
) -> Channel:
    """Raises ChannelFailed, EvidenceRefused, or EvidenceUnavailable if our own evidence cannot be made.

    ``called`` is the server's name in these.
    """
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    deadline = asyncio.get_running_loop().time() + timeout
    async with step(f"connecting to {place}", deadline):
        reader, writer = await asyncio.open_connection(
            host, port, happy_eyeballs_delay=SECOND_ADDRESS_SECONDS
        )
    try:
        async with step(f"TLS with {place}", deadline):
            # Ours is the deadline; asyncio's own of a minute may be too short for whoever has to wait.
            await writer.start_tls(client_context(), server_hostname=host, ssl_handshake_timeout=timeout)
            server_key = key_shown_by(session_of(writer).getpeercert(binary_form=True) or b"")
    except BaseException:
        writer.transport.abort()
        raise
    try:
        async with step(f"exchanging evidence with {place}", deadline):
            terms = side.terms(label, server_key, called)
            peer = await converse(exchange.client(terms), side.issuer, reader, writer)
    except BaseException:
        await hang_up(writer)  # our verdict may still be on its way
        raise
    return Channel(reader, writer, peer, str(writer.get_extra_info("peername")[0]))


@dataclass(frozen=True)
class _Accepted:
    sock: socket.socket
    address: str


class Listener:
    """Takes connections, and hands those to ``handle`` whose evidence convinced; closes them behind it."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        label: str,
        side: Callable[[], Side],
        handle: Callable[[Channel], Awaitable[None]],
        on_refused: Callable[[str, EvidenceRefused], None],
        places: Places,
        seconds: float,
    ) -> None:
        self.port = int(sockets[0].getsockname()[1])
        self._sockets = sockets
        self._label = label
        self._side = side
        self._handle = handle
        self._on_refused = on_refused
        self._seconds = seconds
        self._room: WaitingRoom[_Accepted] = WaitingRoom(places)
        self._crowded = False
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._shaking: set[asyncio.Task[None]] = set()
        self._handling: set[asyncio.Task[None]] = set()
        self._accepting = [tasks.spawn(self._accept(sock), "attested: accept") for sock in sockets]

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        label: str,
        side: Callable[[], Side],
        handle: Callable[[Channel], Awaitable[None]],
        on_refused: Callable[[str, EvidenceRefused], None] = lambda address, why: None,
        places: Places = Places(),  # noqa: B008 -- it is a value
        seconds: float = HANDSHAKE_SECONDS_MAX,
    ) -> Listener:
        """``host`` "" is every address of both families; ``side`` is asked anew for each connection.

        ``on_refused`` is told of every address whose evidence, or ours, did not convince.
        """
        return cls(
            await listening_sockets(host, port),
            label=label,
            side=side,
            handle=handle,
            on_refused=on_refused,
            places=places,
            seconds=seconds,
        )

    @property
    def connections(self) -> int:
        """Those that are about to show what they are, and those in use."""
        return len(self._shaking) + len(self._handling)

    async def stop(self, seconds: float = STOP_SECONDS_MAX) -> None:
        """Take no more connections; the running handlers may finish, those that do not are cancelled."""
        self._stopping.set()
        await _cancelled(self._accepting)
        for sock in (*self._sockets, *(waiting.sock for waiting in self._room.emptied())):
            sock.close()
        await _cancelled([*self._shaking])
        if self._handling:
            await asyncio.wait(set(self._handling), timeout=seconds)
        await _cancelled([*self._handling])

    # --- one connection after the other

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, address = await self._loop.sock_accept(listening)
            except OSError as error:
                logs.event("attested", logs.WARNING, "cannot accept connections", why=error.strerror)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._receive(_Accepted(sock, str(address[0])))
            # A queue in the kernel is accepted without a pause: let those who are inside go on.
            await asyncio.sleep(0)

    def _receive(self, accepted: _Accepted) -> None:
        """Served now or when it has its turn; meanwhile the others of its source, and other sources, are."""
        if sent_away := self._room.enter(source_of(accepted.address), accepted):
            sent_away.sock.close()
        self._serve_next()
        if self._room.waiting and not self._crowded:
            logs.event("attested", logs.WARNING, "connections have to wait", peer=accepted.address)
        self._crowded = bool(self._room.waiting)

    def _serve_next(self) -> None:
        while not self._stopping.is_set() and (turn := self._room.next()):
            tasks.spawn(self._serve(*turn), "attested: connection")

    async def _serve(self, source: str, accepted: _Accepted) -> None:
        task = asyncio.current_task()
        assert task is not None
        address = accepted.address
        self._shaking.add(task)
        try:
            try:
                channel = await self._shaken_hands(accepted.sock, address)
            finally:
                self._shaking.discard(task)
                self._room.proved(source)
                self._serve_next()
            self._handling.add(task)
            try:
                await self._handle(channel)
            finally:
                await channel.close()
        except ChannelFailed as error:
            # Probes and scanners come by all the time.
            logs.event("attested", logs.DEBUG, "no channel", peer=address, why=error)
        except EvidenceRefused as error:
            logs.event("attested", logs.WARNING, "evidence refused", peer=address, why=error)
        except BootbridgeError as error:
            logs.event("attested", logs.ERROR, "channel failed", peer=address, why=error)
        except Exception as error:
            logs.event("attested", logs.ERROR, "handler failed", peer=address, why=repr(error))
        finally:
            self._handling.discard(task)
            self._room.left(source)
            self._serve_next()

    async def _shaken_hands(self, sock: socket.socket, address: str) -> Channel:
        deadline = self._loop.time() + self._seconds
        try:
            side = self._side()
            # A sixth of all that a ticket costs, and OpenSSL's alone: it may use another processor.
            key = await asyncio.to_thread(SessionKey.create)
            # asyncio does it only for sockets that know their protocol, which accepted ones do not.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        async with step("TLS", min(deadline, self._loop.time() + TLS_SECONDS_MAX)):
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, sock, ssl=key.context)
        key.spare_context()
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        try:
            async with step("exchanging evidence", deadline):
                session_of(writer)
                terms = side.terms(self._label, key.public, "the client")
                peer = await converse(exchange.server(terms), side.issuer, reader, writer)
        except BaseException as error:
            try:
                if isinstance(error, EvidenceRefused):
                    self._on_refused(address, error)
            finally:
                await hang_up(writer)
            raise
        return Channel(reader, writer, peer, address, self._stopping)


async def _cancelled(running: Sequence[asyncio.Task[None]]) -> None:
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
