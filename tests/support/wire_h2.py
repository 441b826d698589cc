"""python-hyper's h2 as the other end of a connection, in memory, either role."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from bootbridge.wire import frames as f
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Http2Connection
from tests.support.wire_peers import pieces, split_frames, take


class H2Peer:
    """Sends what it is given as the windows admit, and notes what it is sent."""

    def __init__(self, *, client: bool) -> None:
        self.connection = H2Connection(H2Configuration(client_side=client, header_encoding="utf-8"))
        self.connection.initiate_connection()
        self.received: dict[int, bytes] = defaultdict(bytes)
        self.headers: dict[int, list[tuple[str, str]]] = {}
        self.trailers: dict[int, list[tuple[str, str]]] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.pongs = 0
        self.terminated: int | None = None
        self.echo = False
        self._unsent: dict[int, bytes] = {}
        self._endings: dict[int, Headers] = {}

    def request(self, headers: Headers) -> int:
        stream_id = self.connection.get_next_available_stream_id()
        self.connection.send_headers(stream_id, list(headers))
        return stream_id

    def send(self, stream_id: int, data: bytes) -> None:
        self._unsent[stream_id] = self._unsent.get(stream_id, b"") + data

    def end(self, stream_id: int, trailers: Headers = ()) -> None:
        """Half-close behind everything sent, with trailers if there are any."""
        self._endings[stream_id] = trailers
        self._unsent.setdefault(stream_id, b"")

    def receive(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            self._on_event(event)

    def _on_event(self, event: Event) -> None:
        match event:
            case RequestReceived() | ResponseReceived():
                self.headers[event.stream_id] = [(str(name), str(value)) for name, value in event.headers]
                if isinstance(event, RequestReceived) and self.echo:
                    answer = [(":status", "200"), ("content-type", "application/grpc")]
                    self.connection.send_headers(event.stream_id, answer)
            case TrailersReceived():
                self.trailers[event.stream_id] = [(str(name), str(value)) for name, value in event.headers]
            case DataReceived():
                self._on_data(event)
            case StreamEnded():
                self.ended.add(event.stream_id)
                if self.echo:
                    self.end(event.stream_id, (("grpc-status", "0"),))
            case StreamReset():
                self.resets[event.stream_id] = int(event.error_code)
                self._unsent.pop(event.stream_id, None)
            case PingAckReceived():
                self.pongs += 1
            case ConnectionTerminated():
                self.terminated = int(event.error_code or 0)

    def _on_data(self, event: DataReceived) -> None:
        self.received[event.stream_id] += event.data
        if event.flow_controlled_length:
            self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        if self.echo:
            self.send(event.stream_id, event.data)

    def output(self) -> bytes:
        for stream_id in list(self._unsent):
            self._send_some(stream_id)
        return self.connection.data_to_send()

    def _send_some(self, stream_id: int) -> None:
        connection, data = self.connection, self._unsent[stream_id]
        while data:
            window = connection.local_flow_control_window(stream_id)
            size = min(len(data), window, connection.max_outbound_frame_size)
            if size <= 0:
                break
            connection.send_data(stream_id, data[:size])
            data = data[size:]
        self._unsent[stream_id] = data
        if not data and stream_id in self._endings:
            del self._unsent[stream_id]
            trailers = self._endings.pop(stream_id)
            if trailers:
                connection.send_headers(stream_id, list(trailers), end_stream=True)
            else:
                connection.end_stream(stream_id)


def converse(connection: Http2Connection, peer: H2Peer, sizes: Sequence[int] = (0,)) -> None:
    """Exchanges bytes in pieces of these sizes, in turn, until neither side sends."""
    turn = 0
    while True:
        from_connection, from_peer = take(connection), peer.output()
        if not from_connection and not from_peer:
            return
        size = sizes[turn % len(sizes)]
        for piece in pieces(from_connection, size) if size else frame_by_frame(from_connection):
            peer.receive(piece)
        for piece in pieces(from_peer, size):
            connection.receive(piece)
        turn += 1


def frame_by_frame(data: bytes) -> Iterator[bytes]:
    """h2 takes note of a SETTINGS ACK only with the next bytes it is given."""
    if data.startswith(f.PREFACE):
        yield f.PREFACE
    for frame in split_frames(data):
        yield f.frame(*frame)
