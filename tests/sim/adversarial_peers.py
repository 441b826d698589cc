"""Peers that lie: agents and callers that send what no honest one would."""

from __future__ import annotations

from collections.abc import Callable

from bootbridge.tunnel import extension
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_stream import Stream
from tests.support.sim_network import SimPort, http2_transport
from tests.support.sim_world import SimPump, World

LiveIds = Callable[[], list[int]]  # as if the adversary knew them
IDS_MAX = 6  # small, so that they hit the ids of others


class AdversarialPeer:
    """A raw stream that says random packets, and some that are none."""

    def __init__(
        self, world: World, pump: SimPump, port: SimPort, headers: Headers, live_ids: LiveIds
    ) -> None:
        self.world = world
        self._live_ids = live_ids
        self.port = port
        self._pump = pump
        self._transport = http2_transport(port, client=True, keepalive_seconds=3600.0)
        self._stream: Stream
        self._transport.http2.open_stream(headers, self._opened)
        pump.end_turn()
        self._floods = world.chance(0.05)
        self._act_later()

    def _opened(self, stream: Stream) -> Ear:
        self._stream = stream
        return Ear(self.heard)

    def leave(self) -> None:
        self._transport.close("caught")

    def _act_later(self) -> None:
        self._pump.soon(self.world.between(0.001, 0.15), self._act)

    def _act(self) -> None:
        if self._stream.local_closed and not self._fall_back():
            return
        if self._floods:
            self._flood()
        for _ in range(self.world.count(1, 4)):
            self.say(self.mischief())
        self._act_later()

    def _fall_back(self) -> bool:
        """Its last stream was refused or closed: go on with an older one, if there is any."""
        for stream in self._transport.http2.streams.values():
            if not stream.local_closed:
                self._stream = stream
                return True
        return False

    def _flood(self) -> None:
        """Ask for many answers and leave no room for any of them."""
        self._stream.pause_reading()
        for stray_id in range(1000, 1100):
            self.say(p.encode(p.Data(stray_id, b"?")))

    def say(self, body: bytes) -> None:
        if self._stream.ready:
            self._stream.send(grpc.message_prefix(len(body)) + body)

    def mischief(self) -> bytes:
        world = self.world
        live = self._live_ids()
        some_id = world.count(-1, IDS_MAX)
        if live and world.chance(0.6):
            some_id = live[world.count(0, len(live) - 1)]
        if world.chance(0.02):
            return world.rng.randbytes(world.count(1, 60))
        packets: list[p.Packet] = [
            p.Data(some_id, world.rng.randbytes(world.count(0, 3000))),
            p.CloseRequest(some_id),
            p.CloseResponse("", some_id),
            p.DialResponse("", some_id, world.count(0, IDS_MAX)),
            p.DialRequest("tcp", "10.9.9.9:1", world.count(0, IDS_MAX)),
            p.CloseDial(world.count(0, IDS_MAX)),
            p.Credit(some_id, world.count(-5, 1 << 40)),
            p.End(some_id),
            p.Unknown(77),
        ]
        return p.encode(packets[world.count(0, len(packets) - 1)])

    def heard(self, packet: p.Packet) -> None: ...


class Ear:
    """What an adversary hears on one of its streams."""

    def __init__(self, heard: Callable[[p.Packet], None]) -> None:
        self._heard = heard
        self._reader = grpc.MessageReader(self._on_message)

    # --- StreamHandler

    def on_headers(self, headers: Headers, end: bool) -> None: ...
    def on_data(self, buffer: p.Buffer, start: int, end: int) -> None:
        self._reader.receive(buffer, start, end)

    def on_end(self) -> None: ...
    def on_reset(self, code: int, reason: str) -> None: ...
    def on_ready(self) -> None: ...
    def _on_message(self, buffer: p.Buffer, start: int, end: int) -> None:
        self._heard(p.decode(bytes(buffer[start:end])))


class AdversarialAgent(AdversarialPeer):
    """An agent that answers dials as it likes and speaks about connections that are not its own."""

    def __init__(self, world: World, pump: SimPump, port: SimPort, live_ids: LiveIds, index: int) -> None:
        metadata = [("agentid", f"adversary{index}"), ("agentidentifiers", "")]
        if world.chance(0.6):
            metadata.append((extension.KEY, extension.offer()))
        headers = grpc.request_headers("/AgentService/Connect", "server", metadata)
        super().__init__(world, pump, port, headers, live_ids)

    def heard(self, packet: p.Packet) -> None:
        if isinstance(packet, p.DialRequest):
            draw = self.world.random()
            if draw < 0.6:
                self.say(p.encode(p.DialResponse("", self.world.count(0, IDS_MAX), packet.random)))
            elif draw < 0.8:
                self.say(p.encode(p.DialResponse("no", 0, packet.random)))

    def mischief(self) -> bytes:
        if self.world.chance(0.1):  # exceed any credit
            return p.encode(p.Data(self.world.count(1, IDS_MAX), self.world.rng.randbytes(14000)))
        return super().mischief()


class AdversarialCaller(AdversarialPeer):
    """A gRPC caller that touches the connections of others, from a new one of its own each time."""

    def __init__(self, world: World, pump: SimPump, port: SimPort, live_ids: LiveIds, address: str) -> None:
        self._address = address
        headers = grpc.request_headers("/ProxyService/Proxy", "server")
        super().__init__(world, pump, port, headers, live_ids)
        self._dial()

    def _dial(self) -> None:
        if self.world.chance(0.9):
            self.say(p.encode(p.DialRequest("tcp", self._address, 1)))
            self._pump.end_turn()

    def heard(self, packet: p.Packet) -> None:
        if isinstance(packet, p.DialResponse) and not packet.error:
            live = [other for other in self._live_ids() if other != packet.connect_id]
            for other in live[:1]:
                self.say(p.encode(p.Data(other, b"not yours")))
        elif isinstance(packet, p.CloseResponse) and self.world.chance(0.5):
            self._transport.http2.open_stream(
                grpc.request_headers("/ProxyService/Proxy", "server"), self._opened
            )
            self._dial()


class GarbageSender:
    """A caller that sends bytes which are not HTTP, or not quite."""

    def __init__(self, world: World, port: SimPort) -> None:
        self.port = port
        port.start(self)
        texts = [
            b"GET / HTTP/1.1\r\n\r\n",
            b"CONNECT \x00",
            world.rng.randbytes(200),
            b"CONNECT a:1 HTTP/1.1\r\n",
        ]
        port.write(texts[world.count(0, 3)])
        port.pump.end_turn()

    def leave(self) -> None:
        self.port.abort()

    def on_bytes(self, data: memoryview) -> None: ...
    def on_eof(self, gone: bool) -> None:
        self.port.close()

    def on_drained(self) -> None: ...
    def on_lost(self, reason: str) -> None: ...
