"""A byte stream follows its table of close states, on a real TCP connection."""

from __future__ import annotations

import asyncio
import socket
from errno import EPIPE

import pytest

from bootbridge.ports.close_states import BYTE_STREAM, Event, State
from bootbridge.runtime import event_loop
from bootbridge.runtime.byte_stream import PlainStream
from bootbridge.runtime.event_loop import Loop
from bootbridge.runtime.pump import Pump
from tests.support.close_state_walk import Driven, check, pairs

EVENTS = {
    Event.PEER_ENDS,
    Event.FINISH,
    Event.WRITE_FAILS,
    Event.CLOSE,
    Event.FLUSHED,
    Event.RELEASE,
}
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
