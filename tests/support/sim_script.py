"""Scripted conversations with the cores: send packets, expect the answers; an unexpected answer fails.

A stage holds one core with a clock that only the script moves. Its peers are real connections, joined to
the core's in memory, and the script must expect everything that they receive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_network
from random import Random
from types import TracebackType
from typing import Self

from bootbridge.metrics import Registry
from bootbridge.ports.byte_ports import ByteHandler, DialResult
from bootbridge.ports.timers import Timers
from bootbridge.tunnel import extension
from bootbridge.tunnel.agent_core import AgentCore, ServerStream
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.tunnel.agent_stream import AgentStream
from bootbridge.tunnel.frontend import ConnectFrontend
from bootbridge.tunnel.proxy_core import AGENT_PATH, PROXY_PATH, Limits, ProxyCore
from bootbridge.tunnel.server_metrics import ServerMetrics
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.frames import CANCEL
from bootbridge.wire.hpack_headers import Headers, values_of
from bootbridge.wire.http2_connection import Http2Connection
from bootbridge.wire.http2_stream import Stream


class MemoryPort:
    """A byte port whose peer is the script: it sees what was written and decides what is taken."""

    half_closes = True  # TLS does not

    def __init__(self) -> None:
        self.handler: ByteHandler
        self.written = bytearray()  # what the peer has taken
        self.waiting = bytearray()  # what it has not
        self.stuck = False
        self.paused = False
        self.finished = False
        self.closed = False
        self.aborted = False

    @property
    def backlog(self) -> int:
        return len(self.waiting)

    @property
    def state(self) -> str:
        if self.aborted:
            return "aborted"
        return "closed" if self.closed else "finished" if self.finished else "open"

    def write(self, data: p.Buffer) -> None:
        if not (self.closed or self.aborted):
            self.waiting += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    @property
    def unread(self) -> bool:
        return bool(self.waiting)

    def finish(self) -> bool:
        if not self.half_closes:
            self.close()
            return False
        self.finished = True
        return True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        if not self.closed:
            self.aborted = self.closed = True

    def flush(self) -> bool:
        if self.stuck or not self.waiting:
            return False
        self.take(len(self.waiting))
        return True

    def take(self, size: int) -> None:
        """The peer reads this much of what waits."""
        self.written += self.waiting[:size]
        del self.waiting[:size]
        if not self.closed:
            self.handler.on_drained()


class Stage:
    """A clock, wires and ports; everything moves until nothing is left to move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers = Timers(lambda: self.now)
        self.registry = Registry()
        self.event_log = RecordedEvents()
        self.peers: list[Peer] = []
        self._wires: list[Wire] = []
        self._ports: list[MemoryPort] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.settle()
            unheard = {peer.name: peer.heard for peer in self.peers if peer.heard}
            assert unheard == {}, "the script ended before these were expected"

    def settle(self) -> None:
        while self._move():
            pass

    def _move(self) -> bool:
        moved = [wire.move() for wire in self._wires] + [port.flush() for port in self._ports]
        return any(moved)

    def after(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.now + seconds
        self.settle()
        while (deadline := self.timers.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.timers.fire_due()
            self.settle()
        self.now = end

    def add_port(self, port: MemoryPort) -> MemoryPort:
        self._ports.append(port)
        return port

    def join(self, one: Http2Connection, other: Http2Connection) -> Wire:
        wire = Wire(one, other)
        self._wires.append(wire)
        return wire


class RecordedEvents:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, message: str, **fields: object) -> None:
        self.lines.append((message, fields))

    warning = debug = info

    def about(self, message: str) -> list[dict[str, object]]:
        return [fields for text, fields in self.lines if text == message]


class Wire:
    """Two connections, joined. ``deaf``: the second one does not read for now."""

    def __init__(self, core: Http2Connection, peer: Http2Connection) -> None:
        self.core = core
        self.peer = peer
        self.deaf = False
        self._kept = b""

    def move(self) -> bool:
        moved = self._carry(self.peer, self.core)
        self._kept += b"".join(self.core.take_output())
        if self.deaf:
            self.core.flushed(len(self._kept) < 256 * 1024)
            return moved
        data, self._kept = self._kept, b""
        if data:
            self.peer.receive(data)
            self.core.flushed(True)
        return moved or bool(data)

    @staticmethod
    def _carry(source: Http2Connection, target: Http2Connection) -> bool:
        data = b"".join(source.take_output())
        if data:
            target.receive(data)
            source.flushed(True)
        return bool(data)


class Peer:
    """The other end of a packet stream, as the script plays it."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.heard: list[p.Packet] = []
        self.headers: list[tuple[Headers, bool]] = []
        self.over = ""
        self.stream: Stream
        self.wire: Wire
        self._reader = grpc.MessageReader(self._on_message)
        self._queue: list[bytes] = []
        stage.peers.append(self)

    # --- the script's words

    def say(self, *packets: p.Packet) -> Self:
        for packet in packets:
            body = p.encode(packet)
            self._queue.append(grpc.message_prefix(len(body)) + body)
        self._push()
        self.stage.settle()
        return self

    def expect(self, *packets: p.Packet) -> Self:
        """Exactly these came since the last expectation, in this order."""
        self.stage.settle()
        heard, self.heard = self.heard, []
        assert heard == list(packets)
        return self

    def expect_one(self, kind: type[p.Packet]) -> p.Packet:
        self.stage.settle()
        assert [type(packet) for packet in self.heard] == [kind]
        return self.heard.pop()

    def expect_nothing(self) -> Self:
        return self.expect()

    def hang_up(self) -> None:
        """The whole connection breaks."""
        self.wire.core.lost("connection reset by peer")
        self.stage.settle()

    def cancel(self) -> None:
        """The stream is cancelled, its connection lives on."""
        self.stream.reset(CANCEL)
        self.stage.settle()

    def bytes_of(self, connect_id: int) -> bytes:
        """The payload heard for one connection, taken out of what was heard."""
        self.stage.settle()
        mine = [x for x in self.heard if isinstance(x, p.Data) and x.connect_id == connect_id]
        self.heard = [x for x in self.heard if x not in mine]
        return b"".join(x.data for x in mine)

    @property
    def status(self) -> int:
        """What the core ended the call with."""
        self.stage.settle()
        (trailers,) = [headers for headers, end in self.headers if end]
        return grpc.status_of(trailers)[0]

    # --- StreamHandler

    def on_headers(self, headers: Headers, end: bool) -> None:
        self.headers.append((headers, end))

    def on_data(self, buffer: p.Buffer, start: int, end: int) -> None:
        self._reader.receive(buffer, start, end)

    def on_end(self) -> None:
        self.over = self.over or "ended"

    def on_reset(self, code: int, reason: str) -> None:
        self.over = self.over or reason

    def on_ready(self) -> None:
        self._push()

    def _push(self) -> None:
        while self._queue and self.stream.ready:
            self.stream.send(self._queue.pop(0))

    def _on_message(self, buffer: p.Buffer, start: int, end: int) -> None:
        self.heard.append(p.decode(bytes(buffer[start:end])))

    def opened(self, stream: Stream) -> Self:
        self.stream = stream
        return self


class Dials:
    """A dialler that the script answers."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.asked: list[MemoryDial] = []

    def dial(self, protocol: str, address: str, result: DialResult) -> MemoryDial:
        dial = MemoryDial(self._stage, address, result)
        self.asked.append(dial)
        return dial


class MemoryDial:
    def __init__(self, stage: Stage, address: str, result: DialResult) -> None:
        self._stage = stage
        self._result = result
        self.address = address
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def succeed(self) -> MemoryPort:
        port = self._stage.add_port(MemoryPort())
        port.handler = self._result.on_dialled(port)
        self._stage.settle()
        return port

    def fail(self, error: str, *, timed_out: bool = False) -> None:
        self._result.on_dial_failed(error, timed_out)
        self._stage.settle()


class ConnectCaller:
    """An HTTP CONNECT caller on a memory port."""

    def __init__(self, stage: ServerStage) -> None:
        self._stage = stage
        self.port = stage.add_port(MemoryPort())
        self.port.handler = ConnectFrontend(stage.core, self.port)

    def say(self, data: bytes) -> Self:
        assert not self.port.paused, "a paused caller cannot be heard"
        self.port.handler.on_bytes(memoryview(data))
        self._stage.settle()
        return self

    def connect(self, address: str = "10.0.0.1:80") -> Self:
        return self.say(f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())

    def end(self, *, gone: bool = False) -> Self:
        self.port.handler.on_eof(gone)
        self._stage.settle()
        return self

    def expect(self, data: bytes) -> Self:
        """Exactly these bytes came since the last expectation."""
        self._stage.settle()
        heard = bytes(self.port.written)
        self.port.written.clear()
        assert heard == data
        return self

    def expect_status(self, status: int) -> Self:
        self._stage.settle()
        assert self.port.written.startswith(f"HTTP/1.1 {status} ".encode()), bytes(self.port.written)
        self.port.written.clear()
        return self


OK = b"HTTP/1.1 200 Connection Established\r\n\r\n"


class ServerStage(Stage):
    """A proxy server's core, with agents and callers played by the script."""

    def __init__(
        self,
        *,
        strategies: Sequence[Strategy] = (Strategy.DEFAULT,),
        dial_seconds: float = 30.0,
        stall_seconds: float = 10.0,
    ) -> None:
        super().__init__()
        self.metrics = ServerMetrics(self.registry)
        self.dials = Dials(self)
        self.core = ProxyCore(
            strategies=strategies,
            direct_cidrs=[ip_network("192.0.2.0/24")],
            server_id="server-1",
            server_count=lambda: 1,
            limits=Limits(dial_seconds, stall_seconds),
            timers=self.timers,
            rng=Random(7),
            metrics=self.metrics,
            event_log=self.event_log,
            dialler=self.dials,
        )

    def agent(self, agent_id: str = "a", *, go_like: bool = False, identifiers: str = "") -> Peer:
        metadata = [("agentid", agent_id), ("agentidentifiers", identifiers)]
        if not go_like:
            metadata.append((extension.KEY, extension.offer()))
        return self._peer(agent_id, AGENT_PATH, metadata, self.core.on_agent_request)

    def agent_call(self, metadata: list[tuple[str, str]]) -> Peer:
        """A call on the agent port with this metadata."""
        return self._peer("caller of the agent port", AGENT_PATH, metadata, self.core.on_agent_request)

    def grpc_caller(self) -> Peer:
        return self._peer("caller", PROXY_PATH, [], self.core.on_proxy_request)

    def connect_caller(self) -> ConnectCaller:
        return ConnectCaller(self)

    def _peer(
        self, name: str, path: str, metadata: list[tuple[str, str]], on_request: Callable[..., object]
    ) -> Peer:
        peer = Peer(self, name)
        core, far = Http2Connection(client=False, on_request=on_request), Http2Connection(client=True)  # type: ignore[arg-type]
        peer.wire = self.join(core, far)
        far.open_stream(grpc.request_headers(path, "server", metadata), peer.opened)
        self.settle()
        return peer

    def stream_of(self, agent: Peer) -> AgentStream:
        """The core's own view of a scripted agent."""
        return next(
            stream for stream in self.core.agent_registry if stream.stream.connection is agent.wire.core
        )

    # --- established connections, in one line

    def grpc_route(self, agent: Peer, connect_id: int = 1, address: str = "10.0.0.1:80") -> Peer:
        caller = self.grpc_caller().say(p.DialRequest("tcp", address, 9))
        self.accept(agent, connect_id)
        return caller.expect(p.DialResponse("", connect_id, 9))

    def connect_route(self, agent: Peer, connect_id: int = 1, address: str = "10.0.0.1:80") -> ConnectCaller:
        caller = self.connect_caller().connect(address)
        self.accept(agent, connect_id)
        return caller.expect(OK)

    @staticmethod
    def accept(agent: Peer, connect_id: int) -> None:
        """The agent answers the one dial it was just asked for."""
        dial = agent.expect_one(p.DialRequest)
        assert isinstance(dial, p.DialRequest)
        agent.say(p.DialResponse("", connect_id, dial.random))

    def failures(self, reason: str) -> float:
        return self.metrics.dial_failure_count.labels(reason).value


class AgentStage(Stage):
    """An agent's core, with servers played by the script and endpoints on memory ports."""

    def __init__(self, *, stall_seconds: float = 10.0) -> None:
        super().__init__()
        self.metrics = AgentMetrics(self.registry)
        self.dials = Dials(self)
        self.core = AgentCore(
            agent_id="a",
            identifiers="",
            stall_seconds=stall_seconds,
            timers=self.timers,
            metrics=self.metrics,
            event_log=self.event_log,
            dialler=self.dials,
        )

    def server(self, *, go_like: bool = False) -> Peer:
        peer = Peer(self, "server")
        offered: list[str] = []

        def on_request(stream: Stream, headers: Headers) -> Peer:
            offered.extend(values_of(headers, extension.KEY))
            metadata = [("serverid", "s"), ("servercount", "1")]
            if not go_like:
                metadata.append((extension.KEY, extension.offer()))
            stream.send_headers(grpc.response_headers(metadata))
            return peer.opened(stream)

        core, far = Http2Connection(client=True), Http2Connection(client=False, on_request=on_request)
        peer.wire = self.join(core, far)
        self.core.connect(core, "server", None, _on_answer)
        self.settle()
        assert offered == [extension.offer()]
        peer.headers.clear()
        return peer

    def endpoint(self, server: Peer, random: int = 5, connect_id: int = 1) -> MemoryPort:
        """A dial that succeeded."""
        server.say(p.DialRequest("tcp", "10.0.0.1:80", random))
        port = self.dials.asked.pop().succeed()
        server.expect(p.DialResponse("", connect_id, random))
        return port

    def hear(self, port: MemoryPort, data: bytes) -> None:
        """The endpoint says something."""
        port.handler.on_bytes(memoryview(data))
        self.settle()


def _on_answer(stream: ServerStream) -> None:
    return None
