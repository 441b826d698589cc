"""Adversarial agents and callers: they send packets that violate the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bootbridge.tunnel import extension
from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_stream import Stream
from tests.attacks import floods
from tests.support.sim_environment import Environment, SimPump
from tests.support.sim_network import SimPort, http2_transport

LiveIds = Callable[[], list[int]]  # as if the adversary knew them
PING = f.frame(f.PING, 0, 0, b"bootbrdg")
PING_ANSWER = f.frame(f.PING, f.ACK, 0, b"bootbrdg")
# Only some seeds draw from these, so that the others still replay the same scenario.
LATER_FLOODS = ("goaway", "unknown", "invalid")
ENDED_BY_A_DEADLINE = ("silent", "preface only", "one other method")
IDS_MAX = 6  # small, so that they hit the ids of others


class AdversarialPeer:
    """A stream that sends random packets and some invalid bytes."""

    def __init__(
        self, env: Environment, pump: SimPump, port: SimPort, headers: Headers, live_ids: LiveIds
    ) -> None:
        self.env = env
        self._live_ids = live_ids
        self.port = port
        self._pump = pump
        self._transport = http2_transport(port, client=True, keepalive_seconds=3600.0)
        self._stream: Stream
        self._transport.http2.open_stream(headers, self._opened)
        pump.end_turn()
        self._floods = env.chance(0.05)
        self._act_later()

    def _opened(self, stream: Stream) -> PacketReceiver:
        self._stream = stream
        return PacketReceiver(self.on_packet)

    def leave(self) -> None:
        self._transport.close("caught")

    def _act_later(self) -> None:
        self._pump.soon(self.env.between(0.001, 0.15), self._act)

    def _act(self) -> None:
        if self._stream.local_closed and not self._fall_back():
            return
        if self._floods:
            self._flood()
        for _ in range(self.env.count(1, 4)):
            self.send(self.draw_packet())
        self._act_later()

    def _fall_back(self) -> bool:
        """Continues with an older stream after the last one was refused or closed."""
        for stream in self._transport.http2.streams.values():
            if not stream.local_closed:
                self._stream = stream
                return True
        return False

    def _flood(self) -> None:
        """Provokes 100 answers and opens no window for them."""
        self._stream.pause_reading()
        for stray_id in range(1000, 1100):
            self.send(p.encode(p.Data(stray_id, b"?")))

    def send(self, body: bytes) -> None:
        if self._stream.ready:
            self._stream.send(grpc.message_prefix(len(body)) + body)

    def draw_packet(self) -> bytes:
        env = self.env
        live = self._live_ids()
        some_id = env.count(-1, IDS_MAX)
        if live and env.chance(0.6):
            some_id = live[env.count(0, len(live) - 1)]
        if env.chance(0.02):
            return env.rng.randbytes(env.count(1, 60))
        packets: list[p.Packet] = [
            p.Data(some_id, env.rng.randbytes(env.count(0, 3000))),
            p.CloseRequest(some_id),
            p.CloseResponse("", some_id),
            p.DialResponse("", some_id, env.count(0, IDS_MAX)),
            p.DialRequest("tcp", "10.9.9.9:1", env.count(0, IDS_MAX)),
            p.CloseDial(env.count(0, IDS_MAX)),
            p.Credit(some_id, env.count(-5, 1 << 40)),
            p.End(some_id),
            p.Reset(some_id) if some_id % 2 else p.Unknown(77),
        ]
        return p.encode(packets[env.count(0, len(packets) - 1)])

    def on_packet(self, packet: p.Packet) -> None: ...


class PacketReceiver:
    """Decodes the packets that an adversary receives on one stream."""

    def __init__(self, on_packet: Callable[[p.Packet], None]) -> None:
        self._on_packet = on_packet
        self._reader = grpc.MessageReader(self._on_message)

    # --- StreamHandler

    def on_headers(self, headers: Headers, end: bool) -> None: ...
    def on_data(self, buffer: p.Buffer, start: int, end: int) -> None:
        self._reader.receive(buffer, start, end)

    def on_end(self) -> None: ...
    def on_reset(self, code: int, reason: str) -> None: ...
    def on_ready(self) -> None: ...
    def _on_message(self, buffer: p.Buffer, start: int, end: int) -> None:
        self._on_packet(p.decode(bytes(buffer[start:end])))


class AdversarialAgent(AdversarialPeer):
    """An agent that answers dials at random and sends packets for connections of other agents."""

    def __init__(self, env: Environment, pump: SimPump, port: SimPort, live_ids: LiveIds, index: int) -> None:
        metadata = [("agentid", f"adversary{index}"), ("agentidentifiers", "")]
        if env.chance(0.6):
            metadata.append((extension.KEY, extension.offer()))
        headers = grpc.request_headers("/AgentService/Connect", "server", metadata)
        super().__init__(env, pump, port, headers, live_ids)

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, p.DialRequest):
            draw = self.env.random()
            if draw < 0.6:
                self.send(p.encode(p.DialResponse("", self.env.count(0, IDS_MAX), packet.random)))
            elif draw < 0.8:
                self.send(p.encode(p.DialResponse("no", 0, packet.random)))

    def draw_packet(self) -> bytes:
        if self.env.chance(0.1):  # exceed any credit
            return p.encode(p.Data(self.env.count(1, IDS_MAX), self.env.rng.randbytes(14000)))
        return super().draw_packet()


class AdversarialCaller(AdversarialPeer):
    """A gRPC caller that sends packets for connections of other callers, from a new stream each time."""

    def __init__(
        self, env: Environment, pump: SimPump, port: SimPort, live_ids: LiveIds, address: str
    ) -> None:
        self._address = address
        headers = grpc.request_headers("/ProxyService/Proxy", "server")
        super().__init__(env, pump, port, headers, live_ids)
        self._dial()

    def _dial(self) -> None:
        if self.env.chance(0.9):
            self.send(p.encode(p.DialRequest("tcp", self._address, 1)))
            self._pump.end_turn()

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, p.DialResponse) and not packet.error:
            live = [other for other in self._live_ids() if other != packet.connect_id]
            for other in live[:1]:
                self.send(p.encode(p.Data(other, b"not yours")))
        elif isinstance(packet, p.CloseResponse) and self.env.chance(0.5):
            self._transport.http2.open_stream(
                grpc.request_headers("/ProxyService/Proxy", "server"), self._opened
            )
            self._dial()


class FloodPeer:
    """Sends one kind of frame to the agent port until its connection ends; the server must end it."""

    LATER_KINDS = LATER_FLOODS
    KINDS = (*(kind for kind in floods.FRAMES if kind not in LATER_FLOODS), *ENDED_BY_A_DEADLINE)
    BATCH_BYTES = 2000

    def __init__(self, env: Environment, port: SimPort, kind: str, index: int) -> None:
        self.port = port
        self.kind = kind
        self.started_at = env.now
        self.ended = False
        self.excused = False  # a fault may have ended it instead
        self._received = bytearray()
        self._pings_answered = 0
        self._frames = self._first_frames(f"adversary{index}")
        port.start(self)
        self.on_drained()
        port.pump.end_turn()

    def _first_frames(self, agent_id: str) -> Iterator[bytes]:
        if self.kind == "silent":
            return
        yield f.PREFACE + f.settings({})
        if self.kind == "one other method":
            yield next(floods.FRAMES["other-methods"](agent_id))
        elif self.kind in floods.FRAMES:
            yield from floods.FRAMES[self.kind](agent_id)

    @property
    def floods(self) -> bool:
        """Whether it exceeds a budget; else a deadline ends it."""
        return self.kind in floods.FRAMES

    @property
    def goaways(self) -> list[str]:
        return floods.goaways(self._received)

    def leave(self) -> None:
        """It stays: the server must end it."""

    def on_bytes(self, data: memoryview) -> None:
        self._received += data
        if self.kind != "silent":
            self._answer_pings()
        self.on_drained()

    def _answer_pings(self) -> None:
        """Keeps the connection alive, so that only a budget or the deadline ends it."""
        received = self._received.count(PING)
        for _ in range(received - self._pings_answered):
            self.port.write(PING_ANSWER)
        self._pings_answered = received

    def on_drained(self) -> None:
        size = self.port.backlog
        while size < self.BATCH_BYTES and not self.ended:
            frames = next(self._frames, b"")
            if not frames:
                return
            self.port.write(frames)
            size += len(frames)

    def on_eof(self, gone: bool) -> None:
        self.ended = True
        self.port.close()

    def on_lost(self, reason: str) -> None:
        self.ended = True


class GarbageSender:
    """A caller that sends bytes which are not a valid CONNECT request."""

    def __init__(self, env: Environment, port: SimPort) -> None:
        self.port = port
        port.start(self)
        texts = [
            b"GET / HTTP/1.1\r\n\r\n",
            b"CONNECT \x00",
            env.rng.randbytes(200),
            b"CONNECT a:1 HTTP/1.1\r\n",
        ]
        port.write(texts[env.count(0, 3)])
        port.pump.end_turn()

    def leave(self) -> None:
        self.port.abort()

    def on_bytes(self, data: memoryview) -> None: ...
    def on_eof(self, gone: bool) -> None:
        self.port.close()

    def on_drained(self) -> None: ...
    def on_lost(self, reason: str) -> None: ...
