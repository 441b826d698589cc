"""The agent port: TLS and HTTP/2 for agents, with limits on connections that have no admitted stream."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from random import Random
from typing import Final

from bootbridge.ports.event_log import EventLog
from bootbridge.ports.throttled_log import ThrottledLog
from bootbridge.ports.timers import Timer
from bootbridge.runtime.byte_stream import CLOSED, set_user_timeout
from bootbridge.runtime.connection_limits import ConnectionLimits
from bootbridge.runtime.http2_transport import Http2Transport
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.sockets import READABLE
from bootbridge.runtime.source_penalties import FLOOD_FAULTS, SourcePenalties
from bootbridge.runtime.tls_files import TlsFiles
from bootbridge.runtime.tls_stream import TlsStream
from bootbridge.tunnel.server_metrics import ServerMetrics
from bootbridge.wire.addresses import peer_address, source_of
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_budgets import ONE_STREAM, BudgetExceeded
from bootbridge.wire.http2_stream import Stream, StreamHandler

# An agent opens one stream per connection.
STREAMS_MAX: Final = 1
# A service account token of 1.5 KiB, and 64 identifiers of 256 characters.
HEADER_BYTES_MAX: Final = 24 * 1024
# Agents call Connect right after the TLS handshake; a peer that does not is disconnected.
FIRST_BYTES_SECONDS_MAX: Final = 10.0
UNADMITTED_SECONDS_MAX: Final = 30.0
# Each takes up to 45 KiB in the handshake. Three thousand agents that reconnect at once have room, also
# behind one address (bench/storm.py).
UNADMITTED_MAX: Final = 4096
# The part of all file descriptors that they may take, and that agents leave to frontend and health port.
UNADMITTED_SHARE: Final = 4
RESERVED_SHARE: Final = 4
RESERVED_MAX: Final = 256
# Without a free descriptor, a source whose admitted connections have more than this part of them loses the
# newest one to a source that has fewer.
ADMITTED_SHARE: Final = 4
# Before that, a source with this many unadmitted connections loses one.
UNADMITTED_FEW: Final = 8
# How long the last bytes to a closed connection may stay undelivered: it is no longer counted.
LAST_BYTES_SECONDS: Final = 1.0
DELAY_REASON: Final = "connections of this source failed or were closed for a flood"
_TCP_ESTABLISHED: Final = 1


class AgentPort:
    """Accepts agents' connections. ``requests`` returns what handles the streams of one, and
    ``add_transport`` gets its transport."""

    def __init__(
        self,
        pump: Pump,
        metrics: ServerMetrics,
        tls: TlsFiles,
        keepalive_seconds: float,
        event_log: EventLog,
        requests: Callable[[TlsStream, str, str], Callable[[Stream, Headers], StreamHandler]],
        add_transport: Callable[[Http2Transport], None],
        *,
        authenticates: bool,
    ) -> None:
        """``authenticates``: whether agents need a certificate or a token. If not, delays protect nothing."""
        self.pump = pump
        self.tls = tls
        self.log = ThrottledLog(event_log, pump.timers.now)
        self._metrics = metrics
        self._requests = requests
        self._keepalive_seconds = keepalive_seconds
        self._add_transport = add_transport
        self._authenticates = authenticates
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        total = min(UNADMITTED_MAX, descriptors // UNADMITTED_SHARE)
        one_source = total * 3 // 4
        self.limits: ConnectionLimits[AgentConnection] = ConnectionLimits(total, one_source, pump.timers.now)
        metrics.unadmitted_agent_connections.set_function(lambda: len(self.limits))
        self.penalties = SourcePenalties(pump.timers.now, Random())
        self._admitted: ConnectionLimits[AgentConnection] = ConnectionLimits(
            descriptors, descriptors, pump.timers.now
        )
        self._admitted_share = descriptors // ADMITTED_SHARE
        self._descriptor_max = descriptors - min(RESERVED_MAX, descriptors // RESERVED_SHARE)

    def accept(self, sock: socket.socket) -> None:
        # The kernel assigns the lowest free number, so all lower ones are in use.
        if sock.fileno() >= self._descriptor_max and not self._free_descriptor(_peer(sock)[1]):
            sock.close()
            self._evicted("file descriptors", "")
            return
        set_user_timeout(sock)
        AgentConnection(self, sock)

    def _free_descriptor(self, source: str) -> bool:
        """Closes a connection for a new one of this source; False if none must give way."""
        crowded, count = self._admitted.largest()
        if (
            count > max(self._admitted_share, self._admitted.count(source))
            and self.limits.largest()[1] < UNADMITTED_FEW
        ):
            self._evict(self._admitted.take_newest(crowded), "file descriptors")
            return True
        oldest = self.limits.oldest()
        if oldest is None:
            return False
        self._evict(oldest, "file descriptors")
        return True

    def count(self, connection: AgentConnection) -> None:
        """Counts a connection as not admitted, and closes one if there are too many."""
        evicted = self.limits.add(connection.source, connection)
        if evicted is not None:
            self._evict(evicted, "unadmitted")

    def on_admitted(self, connection: AgentConnection) -> None:
        self.penalties.admitted(connection.source)
        self.limits.remove(connection.source, connection)
        self._admitted.add(connection.source, connection)

    def forget(self, connection: AgentConnection) -> None:
        """The connection is closed, or is not admitted any more."""
        self.limits.remove(connection.source, connection)
        self._admitted.remove(connection.source, connection)

    def _evict(self, connection: AgentConnection, reason: str) -> None:
        connection.abort()
        self._evicted(reason, connection.source)

    def _evicted(self, reason: str, source: str) -> None:
        self._metrics.agent_connections_evicted_total.labels(reason).value += 1
        self.log.warning("too many agent connections: closed one", source=source, limit=reason)

    def delay_handshake(self, connection: AgentConnection) -> float:
        """Returns how long the handshake of this connection has to wait for the faults of its source."""
        seconds = self.penalties.delay(connection.source) if self._authenticates else 0.0
        if seconds:
            self._metrics.agent_handshakes_delayed_total.value += 1
            self.log.warning(
                "agent handshake delayed",
                peer=connection.peer,
                seconds=round(seconds, 2),
                reason=DELAY_REASON,
            )
        return seconds

    def start_transport(self, stream: TlsStream, connection: AgentConnection) -> Http2Transport:
        transport = Http2Transport(
            stream,
            on_request=self._requests(stream, connection.source, connection.peer),
            keepalive_seconds=self._keepalive_seconds,
            streams_max=STREAMS_MAX,
            header_bytes_max=HEADER_BYTES_MAX,
            budgets=ONE_STREAM,
            unadmitted_seconds=UNADMITTED_SECONDS_MAX,
            accepted_at=connection.accepted_at,
        )
        transport.peer = connection.peer
        transport.on_admitted_change = connection.on_admitted_change
        self._add_transport(transport)
        forget = transport.on_closed

        def on_closed(closed: Http2Transport) -> None:
            if isinstance(closed.http2.error, BudgetExceeded):
                self.penalties.fault(connection.source, FLOOD_FAULTS)
            elif not connection.blameless and not self.tls.trusted:
                # With a CA, this peer has shown a certificate: a check by `doctor`, or an agent that stopped.
                self.penalties.fault(connection.source)
            forget(closed)
            connection.on_closed()

        transport.on_closed = on_closed
        return transport


class AgentConnection:
    """One connection to the agent port. TLS starts with the first bytes: a silent one costs 2 KiB."""

    __slots__ = (
        *("_port", "_sock", "_stream", "_timer", "_transport"),
        *("accepted_at", "peer", "source", "blameless"),
    )

    def __init__(self, port: AgentPort, sock: socket.socket) -> None:
        self._port = port
        self._sock = sock
        self._stream: TlsStream | None = None
        self._transport: Http2Transport | None = None
        self.blameless = False  # an agent was admitted, or we closed it for another one
        self.peer, self.source = _peer(sock)
        timers = port.pump.timers
        self.accepted_at = timers.now()
        self._timer: Timer = timers.after(FIRST_BYTES_SECONDS_MAX, self._on_silent)
        port.pump.sockets.watch_slow(sock.fileno(), READABLE, self._on_first_bytes)  # a handshake follows
        port.count(self)

    def _on_silent(self) -> None:
        self._port.limits.remove(self.source, self)
        self._refused(f"nothing received for {FIRST_BYTES_SECONDS_MAX:.0f}s")
        self.abort()

    def _on_first_bytes(self, events: int) -> None:
        self._timer.cancel()
        if seconds := self._port.delay_handshake(self):
            self._port.pump.sockets.unwatch(self._sock.fileno())
            self._timer = self._port.pump.timers.after(seconds, self._after_delay)
        else:
            self._start_tls()

    def _after_delay(self) -> None:
        if _is_connected(self._sock):
            self._start_tls()
        else:
            self._on_failed("closed by the peer before its handshake")

    def _start_tls(self) -> None:
        port = self._port
        self._stream = TlsStream(
            port.pump, self._sock, port.tls.context(), ready=self._start_transport, failed=self._on_failed
        )
        self._stream.read_now()

    def _on_failed(self, reason: str) -> None:
        self._port.limits.remove(self.source, self)
        self._port.penalties.fault(self.source)
        self._refused(reason)
        if self._stream is None:
            self._sock.close()
        else:
            self._close_soon()

    def _refused(self, reason: str) -> None:
        self._port.log.warning("agent refused", peer=self.peer, reason=reason)

    def _start_transport(self, stream: TlsStream) -> None:
        if stream.alpn is None:
            stream.close()
            self._on_failed("ALPN protocol h2 not negotiated")
            return
        self._transport = self._port.start_transport(stream, self)

    def on_admitted_change(self, transport: Http2Transport) -> None:
        if transport.http2.admitted:
            self.blameless = True
            self._port.on_admitted(self)
        else:
            self._port.forget(self)
            self._port.count(self)

    def on_closed(self) -> None:
        self._port.forget(self)
        self._transport = None
        self._close_soon()

    def abort(self) -> None:
        """Closes at once, in every state, to make room; this does not count as a fault."""
        self.blameless = True
        self._timer.cancel()
        if self._stream is None:
            self._port.pump.sockets.forget(self._sock.fileno())
            self._sock.close()
            return
        if self._transport is not None:
            self._transport.close("too many connections")
        self._stream.abort()

    def _close_soon(self) -> None:
        """Leaves a moment for the last bytes, an alert or GOAWAY."""
        stream = self._stream
        if stream is not None and stream.state is not CLOSED:
            self._port.pump.timers.after(LAST_BYTES_SECONDS, stream.abort)


def _is_connected(sock: socket.socket) -> bool:
    """Whether the peer has not closed the connection; what it has sent before may be unread."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_ESTABLISHED


def _peer(sock: socket.socket) -> tuple[str, str]:
    """Returns address and port, and the source that limits are counted by."""
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "gone", "gone"
    return peer_address(host, port), source_of(host)
