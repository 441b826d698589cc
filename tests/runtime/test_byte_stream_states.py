"""A byte stream follows its table of close states, on a real TCP connection."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from errno import EPIPE

import pytest

from bootbridge.ports.close_states import BYTE_STREAM, Event, State
from bootbridge.ports.timers import Timers
from bootbridge.runtime import event_loop
from bootbridge.runtime.byte_stream import LINGER_CHECK_SECONDS, PlainStream
from bootbridge.runtime.event_loop import Loop
from bootbridge.runtime.pump import Pump
from tests.support.close_state_walk import Driven, check, pairs
from tests.support.process_program import until

EVENTS = {
    Event.PEER_ENDS,
    Event.FINISH,
    Event.WRITE_FAILS,
    Event.CLOSE,
    Event.FLUSHED,
    Event.RELEASE,
}
_ORDERLY = struct.pack("ii", 0, 0)
_ABORTED = struct.pack("ii", 1, 0)
FILLING = bytes(16 * 1024 * 1024)  # more than both kernels buffer, so closing has something to wait for


def byte_stream(pump: Pump, sock: socket.socket) -> Driven:
    stream = PlainStream(pump, sock)
    stream.write(FILLING)
    stream.flush()

    def flushed() -> None:
        """The kernel took the rest, but the peer has not read it."""
        stream._out = []
        stream.backlog = 0
        stream._flushed()

    drivers = {
        Event.PEER_ENDS: lambda: stream._on_eof(False),
        Event.FINISH: stream.finish,
        Event.WRITE_FAILS: lambda: stream._cannot_write(OSError(EPIPE, "broken pipe")),
        Event.CLOSE: stream.close,
        Event.FLUSHED: flushed,
        Event.RELEASE: stream.abort,
    }
    assert set(drivers) == EVENTS
    return Driven(stream, drivers)


@pytest.mark.parametrize(("state", "event"), list(pairs(EVENTS, BYTE_STREAM)), ids=str)
def test_a_byte_stream_follows_its_table(state: State, event: Event) -> None:
    async def scenario() -> None:
        check(byte_stream(Pump(event_loop.running_loop()), near), BYTE_STREAM, state, event)

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as near:
        near.connect(listener.getsockname())
        near.setblocking(False)
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(scenario())


def test_a_lingering_stream_whose_peer_resets_is_closed_at_the_next_check() -> None:
    """The kernel keeps unacknowledged bytes in its account after a reset: waiting for them held the
    descriptor for the whole linger time."""

    async def scenario() -> None:
        now = 0.0
        pump = Pump(event_loop.running_loop())
        pump.timers = Timers(lambda: now)
        stream = PlainStream(pump, near)
        stream.write(bytes(1024 * 1024))  # more than the peer's kernel takes, less than ours
        stream.flush()
        assert not stream.backlog
        stream.close()
        assert stream.state is State.LINGERING
        now = LINGER_CHECK_SECONDS
        pump.timers.fire_due()
        assert stream.state is State.LINGERING  # an unread peer is waited for
        far.close()  # with unread bytes: a reset
        until(lambda: _has_error(descriptor), "the reset has arrived")
        now = 2 * LINGER_CHECK_SECONDS
        pump.timers.fire_due()
        assert stream.state is State.CLOSED
        assert not pump.lingering
        assert not len(pump.timers)

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as near:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * 1024)
        near.connect(listener.getsockname())
        near.setblocking(False)
        far, _ = listener.accept()
        descriptor = near.fileno()
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(scenario())


class Observed:
    """Records what a stream tells its owner."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_bytes(self, data: memoryview) -> None:
        self.events.append(bytes(data).decode())

    def on_eof(self, gone: bool) -> None:
        self.events.append("end, gone" if gone else "end")

    def on_drained(self) -> None: ...

    def on_lost(self, reason: str) -> None:
        self.events.append(f"lost: {reason}")


@pytest.mark.parametrize(
    ("linger", "events"),
    [
        pytest.param(_ORDERLY, ["answer", "end, gone"], id="its end came first"),
        pytest.param(_ABORTED, ["answer", "lost: connection reset by peer"], id="it reset the connection"),
    ],
)
def test_after_a_failed_write_an_end_is_one_only_if_the_peer_sent_it(
    linger: bytes, events: list[str]
) -> None:
    """As of a server that answers before it has read the request, and closes."""

    async def scenario() -> None:
        pump = Pump(event_loop.running_loop())
        stream = PlainStream(pump, near)
        observed = Observed()
        stream._handler = observed  # not by start(): this test decides when it reads
        far.sendall(b"answer")
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        far.close()

        def write_fails() -> bool:
            """The first write may only provoke the reset."""
            stream.write(b"late")
            stream.flush()
            return stream.state is State.WRITE_BROKEN

        until(write_fails, "a write has failed")
        stream._on_readable(0)
        stream._on_readable(0)
        assert observed.events == events
        assert stream.state is State.CLOSED

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as near:
        near.connect(listener.getsockname())
        near.setblocking(False)
        far, _ = listener.accept()
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(scenario())


def _has_error(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
