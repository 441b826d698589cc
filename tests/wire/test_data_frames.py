"""The content of a DATA frame reaches its stream as it arrives."""

from __future__ import annotations

import pytest

from bootbridge.wire import frames as f
from bootbridge.wire.frame_reader import FRAME_BYTES_MAX
from bootbridge.wire.http2_budgets import BudgetExceeded
from bootbridge.wire.http2_stream import Stream
from tests.support.wire_peers import Recorder, Wire, split_frames, take


def one_stream() -> tuple[Wire, Stream, Recorder]:
    """A server with one open stream."""
    wire = Wire()
    wire.record()
    wire.deliver()
    stream = wire.requests[0]
    assert isinstance(stream.handler, Recorder)
    return wire, stream, stream.handler


def padded(content: bytes, padding: int, flags: int = 0) -> bytes:
    return f.frame(f.DATA, flags | f.PADDED, 1, bytes([padding]) + content + b"\xa5" * padding)


def test_content_is_passed_on_before_its_frame_is_complete() -> None:
    """A large frame is handled in the parts in which it arrives, and never held."""
    wire, _, received = one_stream()
    data = f.frame(f.DATA, 0, 1, bytes(range(256)) * (FRAME_BYTES_MAX // 256))
    at = 0
    for end in (5, f.HEADER_SIZE, f.HEADER_SIZE + 1, 1000, 500_000, len(data)):
        wire.server.receive(data[at:end])
        at = end
        assert received.data() == data[f.HEADER_SIZE : end]
        assert wire.server._reader.held_bytes in (0, 5)


@pytest.mark.parametrize("padding", [0, 1, 255])
@pytest.mark.parametrize("content", [b"", b"content"])
def test_padding_is_not_content(content: bytes, padding: int) -> None:
    """Wherever the frame is split, and the next frame begins behind the padding."""
    data = padded(content, padding) + f.frame(f.DATA, 0, 1, b"next")
    for split in range(len(data) + 1):
        wire, _, received = one_stream()
        wire.server.receive(data[:split])
        wire.server.receive(data[split:])
        assert wire.server.error is None
        assert received.data() == content + b"next"


@pytest.mark.parametrize(
    "frame", [f.frame(f.DATA, f.PADDED, 1), f.frame(f.DATA, f.PADDED, 1, b"\x01"), padded(b"", 9)[:-1]]
)
def test_padding_that_is_longer_than_its_frame_is_an_error(frame: bytes) -> None:
    wire, _, received = one_stream()
    size = len(frame) - f.HEADER_SIZE
    wire.server.receive(f.HEADER.pack(0, size, f.DATA, f.PADDED, 1) + frame[f.HEADER_SIZE :])
    assert wire.server.error is not None
    assert (wire.server.error.code, received.data()) == (f.PROTOCOL_ERROR, b"")


def test_a_stream_ends_behind_the_last_byte_of_its_frame() -> None:
    """Not with the flag, which arrives first, and not before the padding."""
    wire, _, received = one_stream()
    data = padded(b"last words", 20, f.END_STREAM)
    wire.server.receive(data[:-1])
    assert received.data() == b"last words"
    assert "end" not in received.names()
    wire.server.receive(data[-1:])
    assert received.names()[-1] == "end"


def test_the_rest_of_a_frame_for_a_stream_that_we_reset_is_discarded() -> None:
    """The connection and its other streams continue."""
    wire, stream, received = one_stream()
    other, _ = wire.record()
    wire.deliver()
    data = f.frame(f.DATA, 0, 1, b"wanted" + b"discarded")
    wire.server.receive(data[: f.HEADER_SIZE + 6])
    stream.reset(f.CANCEL)
    wire.server.receive(data[f.HEADER_SIZE + 6 :] + f.frame(f.DATA, 0, other.id, b"other"))
    assert wire.server.error is None
    assert received.data() == b"wanted"
    assert isinstance(wire.requests[1].handler, Recorder)
    assert wire.requests[1].handler.data() == b"other"


def test_a_late_frame_is_not_held() -> None:
    """For a stream that we have reset: however large, and however slowly it arrives."""
    wire, stream, _ = one_stream()
    stream.reset(f.CANCEL)
    data = f.frame(f.DATA, 0, 1, bytes(100_000))
    for at in range(0, len(data), 1000):
        wire.server.receive(data[at : at + 1000])
        assert wire.server._reader.held_bytes == 0
    assert wire.server.error is None


def test_a_frame_is_taken_from_the_window_when_it_begins_and_returned_when_it_ends() -> None:
    """So the split of a frame makes no difference to the peer."""
    wire, stream, _ = one_stream()
    size = wire.server.stream_window // 2
    data = f.frame(f.DATA, 0, 1, bytes(size))
    take(wire.server)
    wire.server.receive(data[:-1])
    assert stream.receive_window == wire.server.stream_window - size
    assert take(wire.server) == b""
    wire.server.receive(data[-1:])
    assert stream.receive_window == wire.server.stream_window
    assert split_frames(take(wire.server)) == [
        (f.WINDOW_UPDATE, 0, 1, f.UINT32.pack(size)),
    ]


def test_a_frame_that_overruns_the_window_is_refused_before_its_content() -> None:
    """Nothing of it reaches the stream."""
    wire, stream, received = one_stream()
    stream.receive_window = 99
    wire.server.receive(f.frame(f.DATA, 0, 1, bytes(100))[: f.HEADER_SIZE + 1])
    assert wire.server.error is not None
    assert (wire.server.error.code, received.data()) == (f.FLOW_CONTROL_ERROR, b"")


@pytest.mark.parametrize("opened", [True, False], ids=["reset by us", "refused"])
def test_data_on_a_stream_that_we_closed_is_limited_to_its_window(opened: bool) -> None:
    """More cannot have been in flight, so the peer ignores that the stream is closed."""
    wire, stream, _ = one_stream()
    window = stream.receive_window
    stream_id = 1
    if opened:
        stream.receive_window -= 1000  # received before
        window -= 1000
        stream.reset(f.CANCEL)
    else:
        wire.server.go_away()
        refused, _ = wire.record()
        wire.deliver()
        stream_id = refused.id
    for _ in range(window // 100):
        wire.server.receive(f.frame(f.DATA, 0, stream_id, bytes(100)))
    assert wire.server.error is None
    wire.server.receive(f.frame(f.DATA, 0, stream_id, bytes(100)))
    assert isinstance(wire.server.error, BudgetExceeded)
    assert wire.server.error.frame == "late DATA"


def test_a_stream_that_we_closed_may_end_with_an_empty_frame() -> None:
    """Also if its window was used up. More empty frames are a flood."""
    wire, stream, _ = one_stream()
    stream.receive_window = 0
    stream.reset(f.CANCEL)
    wire.server.receive(f.frame(f.DATA, f.END_STREAM, 1))
    assert wire.server.error is None
    wire.server.receive(f.frame(f.DATA, f.END_STREAM, 1))
    assert isinstance(wire.server.error, BudgetExceeded)
