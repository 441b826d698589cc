"""The invariant of both connection targets, and conversations to start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tests.support.wire_frame_sequences import FrameSequence, Received, Step


def check_connection(receive: Callable[[Iterable[bytes]], Received], data: bytes) -> None:
    """The first byte says how the others are cut: the outcome must not depend on it."""
    size, stream = 1 + data[0] % 64 if data else 1, data[1:]
    whole = receive([stream])
    assert whole == receive([stream[at : at + size] for at in range(0, len(stream), size)])
    _, out, error, streams = whole
    assert error is None or not streams, "a stream outlived its connection"
    # A peer gets at most a few times the bytes back that it sent (and the greeting of our own side).
    assert len(out) <= 2000 + 4 * len(stream)


def conversations(*, client: bool) -> Iterator[bytes]:
    steps = ["open", "data", "end", "reset", "ping", "settings", "window", "priority", "unknown"]
    for choice in (0, 2, 5, 8, 15, 16, 31):
        sequence: list[Step] = [("open", 0, choice, b"x"), ("open", 0, choice, b"y")]
        sequence += [(step, choice % 2, choice, b"content") for step in steps]
        yield b"\x07" + FrameSequence(client=client).encode(sequence)
        for step in steps:
            yield b"\x00" + FrameSequence(client=client).encode(
                [*sequence[:1], (step, 0, choice, b"content")]
            )
