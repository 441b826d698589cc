"""Attested channels: TLS connections whose ends have verified each other's evidence.

channel = await connect(host, port, label=JOIN_LABEL, attestation=Attestation(issuer, verifiers))
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
from bootbridge.runtime.concurrency import cancel_and_wait
from bootbridge.trust.attested import exchange
from bootbridge.trust.attested.admission_queue import AdmissionLimits, AdmissionQueue
from bootbridge.trust.attested.channel_binding import NONCE_BYTES
from bootbridge.trust.attested.exchange import ExchangeParameters
from bootbridge.trust.attested.handshake import (
    ChannelFailed,
    EvidenceSource,
    close_gracefully,
    handshake_step,
    run_exchange,
    tls_session,
)
from bootbridge.trust.attested.listening_sockets import listening_sockets
from bootbridge.trust.attested.refusal_log import RefusalLog
from bootbridge.trust.attested.session_key import SessionKey, client_context, public_key_of
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused, Issuer, Verifier
from bootbridge.wire.addresses import source_of

# For the whole handshake, without the time in which our own evidence waits for its device.
HANDSHAKE_SECONDS_MAX: Final = 30.0
# For the TLS part of it, in which no TPM is involved.
TLS_SECONDS_MAX: Final = 10.0
STOP_SECONDS_MAX: Final = 10.0
# Pause after accept() failed, usually because the process has no file descriptor left.
RETRY_SECONDS: Final = 0.1
# Happy Eyeballs (RFC 8305): the second address is tried after this while the first has not answered.
SECOND_ADDRESS_SECONDS: Final = 0.25

__all__ = [
    "AdmissionLimits",
    "Attestation",
    "AttestedChannel",
    "AttestedListener",
    "ChannelFailed",
    "connect",
]


@dataclass(frozen=True)
class Attestation:
    """What one end presents and what it requires of its peer; may be shared by many connections.

    Without an issuer it presents no evidence, without verifiers it requires none.
    """

    issuer: Issuer | None = None
    verifiers: tuple[Verifier, ...] = ()

    def __post_init__(self) -> None:
        kinds = [verifier.kind for verifier in self.verifiers]
        if len(set(kinds)) < len(kinds):
            raise LocalError(f"two verifiers of one kind: {', '.join(kinds)}")

    def parameters(self, label: str, server_key: bytes, peer_name: str) -> ExchangeParameters:
        kind = self.issuer.kind if self.issuer is not None else ""
        return ExchangeParameters(label, os.urandom(NONCE_BYTES), server_key, kind, self.verifiers, peer_name)


@dataclass(frozen=True)
class AttestedChannel:
    """A connection after a successful handshake. ``peer`` is None only if no evidence was required."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    peer: AttestedPeer | None
    peer_address: str
    # Set when the listener stops; `runtime.calls.serve` takes it.
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def close(self) -> None:
        await close_gracefully(self.writer)


async def connect(
    host: str,
    port: int,
    *,
    label: str,
    attestation: Attestation,
    timeout: float = HANDSHAKE_SECONDS_MAX,  # noqa: ASYNC109
    peer_name: str = "the server",
) -> AttestedChannel:
    """Raises ChannelFailed, EvidenceRefused, or EvidenceUnavailable if our own evidence cannot be produced.

    ``peer_name`` is how these errors name the server.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    deadline = asyncio.get_running_loop().time() + timeout
    async with handshake_step(f"connecting to {address}", deadline):
        reader, writer = await asyncio.open_connection(
            host, port, happy_eyeballs_delay=SECOND_ADDRESS_SECONDS
        )
    try:
        async with handshake_step(f"TLS handshake with {address}", deadline):
            # asyncio's default of 60 s could be shorter than our deadline.
            await writer.start_tls(client_context(), server_hostname=host, ssl_handshake_timeout=timeout)
            server_key = public_key_of(tls_session(writer).getpeercert(binary_form=True) or b"")
    except BaseException:
        writer.transport.abort()
        raise
    try:
        async with handshake_step(f"exchanging evidence with {address}", deadline) as step:
            parameters = attestation.parameters(label, server_key, peer_name)
            own = EvidenceSource(attestation.issuer, source_of(host), step)
            peer = await run_exchange(exchange.client(parameters), own, reader, writer)
    except BaseException:
        await close_gracefully(writer)  # our result message may still be in the buffer
        raise
    return AttestedChannel(reader, writer, peer, str(writer.get_extra_info("peername")[0]))


@dataclass(frozen=True)
class _Accepted:
    sock: socket.socket
    address: str


class AttestedListener:
    """Accepts connections and passes those with accepted evidence to ``handle``; closes each afterwards."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        label: str,
        attestation: Callable[[], Attestation],
        handle: Callable[[AttestedChannel], Awaitable[None]],
        limits: AdmissionLimits,
        handshake_seconds: float,
    ) -> None:
        self.port = int(sockets[0].getsockname()[1])
        self._sockets = sockets
        self._label = label
        self._attestation = attestation
        self._handle = handle
        self.refusals = RefusalLog()
        self._handshake_seconds = handshake_seconds
        self._queue: AdmissionQueue[_Accepted] = AdmissionQueue(limits)
        self._queue_reported = False
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._handshaking: set[asyncio.Task[None]] = set()
        self._handling: set[asyncio.Task[None]] = set()
        self._accepting = [tasks.spawn(self._accept(sock), "attested: accept") for sock in sockets]

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        label: str,
        attestation: Callable[[], Attestation],
        handle: Callable[[AttestedChannel], Awaitable[None]],
        limits: AdmissionLimits = AdmissionLimits(),  # noqa: B008 -- immutable
        handshake_seconds: float = HANDSHAKE_SECONDS_MAX,
    ) -> AttestedListener:
        """``host`` "" is every address of both families; ``attestation`` is called for each connection."""
        return cls(
            await listening_sockets(host, port),
            label=label,
            attestation=attestation,
            handle=handle,
            limits=limits,
            handshake_seconds=handshake_seconds,
        )

    @property
    def connections(self) -> int:
        """Admitted connections: in the handshake, and in use."""
        return len(self._handshaking) + len(self._handling)

    async def stop(self, seconds: float = STOP_SECONDS_MAX) -> None:
        """Stops accepting; handlers that have not finished after ``seconds`` are cancelled."""
        self._stopping.set()
        await cancel_and_wait(*self._accepting)
        for sock in (*self._sockets, *(waiting.sock for waiting in self._queue.drain())):
            sock.close()
        await cancel_and_wait(*self._handshaking)
        if self._handling:
            await asyncio.wait(set(self._handling), timeout=seconds)
        await cancel_and_wait(*self._handling)
        self.refusals.close()

    # --- per connection

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, address = await self._loop.sock_accept(listening)
            except OSError as error:
                logs.event("attested", logs.WARNING, "accept failed", reason=error.strerror)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._enqueue(_Accepted(sock, str(address[0])))
            # sock_accept() does not yield while the kernel's backlog has entries.
            await asyncio.sleep(0)

    def _enqueue(self, accepted: _Accepted) -> None:
        if evicted := self._queue.enqueue(source_of(accepted.address), accepted):
            evicted.sock.close()
        self._serve_next()
        if self._queue.waiting and not self._queue_reported:
            self.refusals.event(logs.WARNING, "connections are waiting for admission", accepted.address)
        self._queue_reported = bool(self._queue.waiting)

    def _serve_next(self) -> None:
        while not self._stopping.is_set() and (admitted := self._queue.admit_next()):
            tasks.spawn(self._serve(*admitted), "attested: connection")

    async def _serve(self, source: str, accepted: _Accepted) -> None:
        task = asyncio.current_task()
        assert task is not None
        address = accepted.address
        self._handshaking.add(task)
        try:
            try:
                channel = await self._handshake(accepted.sock, address)
            finally:
                self._handshaking.discard(task)
                self._queue.end_handshake(source)
                self._serve_next()
            self._handling.add(task)
            try:
                await self._handle(channel)
            finally:
                await channel.close()
        except ChannelFailed as error:
            # DEBUG: port probes and scanners are frequent.
            logs.event("attested", logs.DEBUG, "handshake failed", peer=address, reason=error)
        except EvidenceRefused as error:
            self.refusals.evidence_refused(address, error)
        except BootbridgeError as error:
            self.refusals.event(logs.ERROR, "channel failed", address, error)
        except Exception as error:
            logs.event("attested", logs.ERROR, "handler failed", peer=address, reason=repr(error))
        finally:
            self._handling.discard(task)
            self._queue.release(source)
            self._serve_next()

    async def _handshake(self, sock: socket.socket, address: str) -> AttestedChannel:
        deadline = self._loop.time() + self._handshake_seconds
        try:
            attestation = self._attestation()
            # In a thread: OpenSSL releases the GIL, and this is a sixth of a ticket's processor time.
            key = await asyncio.to_thread(SessionKey.create)
            # asyncio sets it only on sockets whose `proto` is known, which is 0 on accepted ones.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        async with handshake_step("TLS handshake", min(deadline, self._loop.time() + TLS_SECONDS_MAX)):
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, sock, ssl=key.context)
        key.recycle_context()
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        try:
            async with handshake_step("exchanging evidence", deadline) as step:
                tls_session(writer)
                parameters = attestation.parameters(self._label, key.public, "the client")
                own = EvidenceSource(attestation.issuer, source_of(address), step)
                peer = await run_exchange(exchange.server(parameters), own, reader, writer)
        except BaseException:
            await close_gracefully(writer)
            raise
        return AttestedChannel(reader, writer, peer, address, self._stopping)
