"""Floods of frames that transfer nothing end the connection; peers that answer our data never do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import hpack
import pytest

from bootbridge.wire import frames as f
from bootbridge.wire.http2_budgets import (
    ONE_STREAM,
    SETTINGS_ENTRIES_MAX,
    STREAM_ERROR,
    BudgetExceeded,
    FrameBudget,
    Http2Budgets,
    many_streams,
)
from bootbridge.wire.http2_connection import Http2Connection
from bootbridge.wire.http2_stream import Stream
from tests.support.wire_peers import REQUEST, Recorder, split_frames, take

FRAMES_MAX = 5000  # every flood must end before


class Server:
    """A server connection with one open stream, and a clock that the test moves."""

    def __init__(self, budgets: tuple[FrameBudget, ...] = ONE_STREAM, *, admits: bool = False) -> None:
        self.now = 0.0
        self.streams: list[Stream] = []
        self.http2 = Http2Connection(
            client=False,
            on_request=self._on_request,
            streams_max=10,
            budgets=budgets,
            now=lambda: self.now,
            admits=admits,
        )
        self.http2.receive(f.PREFACE + f.settings({}) + headers(1))
        take(self.http2)

    def _on_request(self, stream: Stream, headers: object) -> Recorder:
        self.streams.append(stream)
        return Recorder()

    def flood(self, frames: Iterator[bytes]) -> int:
        """Sends frames until the connection has ended; returns how many it accepted."""
        for accepted in range(FRAMES_MAX):
            self.http2.receive(next(frames))
            if self.http2.closed:
                return accepted
            take(self.http2)
        raise AssertionError(f"{FRAMES_MAX} frames and the connection is open")


def headers(stream_id: int) -> bytes:
    return f.frame(f.HEADERS, f.END_HEADERS, stream_id, hpack.Encoder().encode(list(REQUEST)))


def again(frame: bytes) -> Callable[[], Iterator[bytes]]:
    def frames() -> Iterator[bytes]:
        while True:
            yield frame

    return frames


def resets() -> Iterator[bytes]:
    for stream_id in count(3, 2):
        yield headers(stream_id)
        yield f.rst_stream(stream_id, f.CANCEL)


def malformed_requests() -> Iterator[bytes]:
    for stream_id in count(3, 2):
        bad = hpack.Encoder().encode([(":method", "POST")])
        yield f.frame(f.HEADERS, f.END_HEADERS, stream_id, bad)


def continuations() -> Iterator[bytes]:
    yield f.frame(f.HEADERS, 0, 3)
    while True:
        yield f.frame(f.CONTINUATION, 0, 3)


def opened() -> Iterator[bytes]:
    """More calls than a connection may have; each is refused, and none is reset."""
    for stream_id in count(3, 2):
        yield headers(stream_id)


def resets_of_one() -> Iterator[bytes]:
    """Of a closed stream, which are ignored."""
    while True:
        yield f.rst_stream(1, f.CANCEL)


FLOODS: dict[str, tuple[Callable[[], Iterator[bytes]], set[str]]] = {
    "PING": (again(f.frame(f.PING, 0, 0, b"12345678")), {"PING"}),
    "PING ACK": (again(f.frame(f.PING, f.ACK, 0, b"12345678")), {"PING"}),
    "SETTINGS": (again(f.settings({f.INITIAL_WINDOW_SIZE: 100})), {"SETTINGS"}),
    "SETTINGS ACK": (again(f.frame(f.SETTINGS, f.ACK, 0)), {"SETTINGS"}),
    "WINDOW_UPDATE": (again(f.window_update(0, 1)), {"WINDOW_UPDATE"}),
    "WINDOW_UPDATE of a stream": (again(f.window_update(1, 1)), {"WINDOW_UPDATE"}),
    "PRIORITY": (again(f.frame(f.PRIORITY, 0, 1, bytes(5))), {"PRIORITY"}),
    "empty DATA": (again(f.frame(f.DATA, 0, 1)), {"empty DATA"}),
    "padded empty DATA": (again(f.frame(f.DATA, f.PADDED, 1, b"\x03\0\0\0")), {"empty DATA"}),
    "GOAWAY": (again(f.goaway(0, 0)), {"GOAWAY"}),
    "unknown frames": (again(f.frame(0xBE, 0, 0, b"x")), {"unknown"}),
    "RST_STREAM": (resets, {"HEADERS", "RST_STREAM"}),
    "malformed requests": (malformed_requests, {"HEADERS", "invalid"}),
    "HEADERS alone": (opened, {"HEADERS"}),
    "RST_STREAM alone": (resets_of_one, {"RST_STREAM"}),
    "CONTINUATION": (continuations, {"CONTINUATION"}),
}


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.parametrize("budgets", [ONE_STREAM, many_streams(10)], ids=["one stream", "many streams"])
def test_a_flood_ends_the_connection(name: str, budgets: tuple[FrameBudget, ...]) -> None:
    """With ENHANCE_YOUR_CALM, and the error names the kind of frame."""
    frames, kinds = FLOODS[name]
    server = Server(budgets)
    server.flood(frames())
    assert isinstance(server.http2.error, BudgetExceeded)
    assert server.http2.error.frame in kinds
    kind, _, _, payload = split_frames(take(server.http2))[-1]
    assert (kind, int.from_bytes(payload[4:8], "big")) == (f.GOAWAY, f.ENHANCE_YOUR_CALM)


def test_frames_that_are_answered_with_a_reset_have_a_budget_of_their_own() -> None:
    """Smaller on the agent port than that of their kind: each costs an answer too."""
    on_itself = f.frame(f.PRIORITY, 0, 3, b"\0\0\0\x03\0")
    server = Server(ONE_STREAM)
    assert server.flood(again(on_itself)()) == ONE_STREAM[STREAM_ERROR].burst
    assert isinstance(server.http2.error, BudgetExceeded)
    assert server.http2.error.frame == "invalid"


@pytest.mark.parametrize("name", FLOODS)
def test_the_same_frames_within_time_are_no_flood(name: str) -> None:
    """Each budget is refilled by time: rare frames never end a connection, however long it lives."""
    frames, _ = FLOODS[name]
    server = Server(many_streams(1000))
    sent = frames()
    for _ in range(400 if name == "CONTINUATION" else FRAMES_MAX):  # its block has a size limit too
        server.now += 2.0
        server.http2.receive(next(sent))
        take(server.http2)
    assert server.http2.error is None


SMALL_DATA = {
    "plain": f.frame(f.DATA, 0, 1, b"x"),
    "padded": f.frame(f.DATA, f.PADDED, 1, b"\x01x\0"),
    "with an unknown flag": f.frame(f.DATA, 0x80, 1, b"x"),
}


@pytest.mark.parametrize("frame", SMALL_DATA.values(), ids=SMALL_DATA)
@pytest.mark.parametrize("refused", [False, True], ids=["open call", "refused call"])
def test_small_data_before_admission_is_a_flood(frame: bytes, refused: bool) -> None:
    """The peer is not authenticated yet; an agent sends at most one packet then."""
    server = Server(admits=True)
    if refused:
        server.streams[0].reset(f.CANCEL)
    assert server.flood(again(frame)()) == 16
    assert isinstance(server.http2.error, BudgetExceeded)
    assert server.http2.error.frame == "DATA before admission"


@pytest.mark.parametrize("frame", SMALL_DATA.values(), ids=SMALL_DATA)
@pytest.mark.parametrize("ended", [False, True], ids=["admitted", "admitted, then ended by us"])
def test_small_data_of_an_admitted_agent_is_no_flood(frame: bytes, ended: bool) -> None:
    """It may be in flight when the server ends the agent's stream."""
    server = Server(admits=True)
    server.http2.count_admitted(1)
    if ended:
        server.streams[0].reset(f.CANCEL)
        server.http2.count_admitted(-1)
    for _ in range(FRAMES_MAX):
        server.http2.receive(frame)
        take(server.http2)
    assert server.http2.error is None


def test_answers_to_our_data_are_no_flood() -> None:
    """As grpc-go does at its worst: a PING, and a WINDOW_UPDATE for stream and connection, behind each
    small message that it receives. No time passes."""
    server = Server()
    stream = server.streams[0]
    server.http2.receive(f.window_update(0, 1 << 30) + f.window_update(1, 1 << 30))
    for _ in range(FRAMES_MAX):
        stream.send(b"message")
        take(server.http2)
        server.http2.receive(
            f.frame(f.PING, 0, 0, b"bdp bdp ") + f.window_update(0, 7) + f.window_update(1, 7)
        )
        take(server.http2)
    assert server.http2.error is None


def test_answers_to_large_frames_are_no_flood() -> None:
    """A peer that returns its window in small pieces, for each 4 KiB of one large frame."""
    server = Server()
    stream = server.streams[0]
    size = 64 * 1024
    server.http2.receive(
        f.settings({f.MAX_FRAME_SIZE: 1 << 20}) + f.window_update(0, 1 << 30) + f.window_update(1, 1 << 30)
    )
    for _ in range(300):
        stream.send(bytes(size))
        take(server.http2)
        for _ in range(size // 4096):
            server.http2.receive(f.window_update(0, 4096) + f.window_update(1, 4096))
    assert server.http2.error is None


def test_a_caller_may_open_and_reset_all_its_streams_again_and_again() -> None:
    """A gRPC frontend: each call sends a message and is cancelled."""
    server = Server(many_streams(10))
    for stream_id in range(3, 20_003, 2):
        server.http2.receive(
            headers(stream_id) + f.frame(f.DATA, 0, stream_id, b"dial") + f.rst_stream(stream_id, f.CANCEL)
        )
        take(server.http2)
    assert server.http2.error is None


@pytest.mark.parametrize("whole", [True, False], ids=["at once", "in pieces"])
def test_an_oversized_settings_frame_is_refused_by_its_header(whole: bool) -> None:
    """One of 1 MiB took 0.28 s with 16 streams; its content is not awaited."""
    server = Server()
    entry = f.SETTING.pack(f.INITIAL_WINDOW_SIZE, 1)
    frame = f.frame(f.SETTINGS, 0, 0, entry * (SETTINGS_ENTRIES_MAX + 1))
    server.http2.receive(frame if whole else frame[: f.HEADER_SIZE])
    assert isinstance(server.http2.error, BudgetExceeded)
    assert server.http2.error.frame == "SETTINGS"


def test_only_the_last_initial_window_of_a_frame_counts() -> None:
    """RFC 9113 processes values in order; streams see one change."""
    server = Server()
    changes = [f.SETTING.pack(f.INITIAL_WINDOW_SIZE, value) for value in (5, f.WINDOW_LIMIT, 70_000)]
    server.http2.receive(f.window_update(1, 10))
    server.http2.receive(f.frame(f.SETTINGS, 0, 0, b"".join(changes)))
    assert server.http2.error is None
    assert server.streams[0].window == 70_010


def test_a_budget_never_holds_more_than_its_burst() -> None:
    """A long rest earns no more than the start."""
    now = 0.0
    budgets = Http2Budgets([FrameBudget(3, per_second=1)], lambda: now, lambda: 0)
    for _ in range(3):
        budgets.spend(0)
    now = 1000.0
    for _ in range(3):
        budgets.spend(0)
    with pytest.raises(BudgetExceeded):
        budgets.spend(0)
