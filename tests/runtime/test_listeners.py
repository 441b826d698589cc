"""A listener on a real socket; the clock of its rate is under the control of the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from bootbridge.runtime import event_loop
from bootbridge.runtime.accept_rate import BURST, AcceptRate
from bootbridge.runtime.listeners import Listener, tcp_socket
from bootbridge.runtime.pump import Pump

CONNECTIONS = int(BURST) * 2
DEADLINE_SECONDS = 20.0


@pytest.fixture
def waiting() -> Iterator[socket.socket]:
    """A listening socket with connections in its queue."""
    listening = tcp_socket("127.0.0.1", 0, "--agent-port")
    with ExitStack() as stack:
        stack.enter_context(listening)
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection(listening.getsockname()))
        yield listening


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.005)


def close_all(listener: Listener, accepted: list[socket.socket]) -> None:
    listener.close()
    for sock in accepted:
        sock.close()


def test_a_flood_of_connections_is_accepted_in_parts(waiting: socket.socket) -> None:
    """The rest waits in the kernel's queue; after each pause the listener tries again."""

    async def scenario() -> int:
        now, asked = 1000.0, 0

        def clock() -> float:
            nonlocal asked
            asked += 1
            return now

        accepted: list[socket.socket] = []
        rate = AcceptRate(clock)
        listener = Listener(Pump(event_loop.running_loop()), waiting, accepted.append, rate=rate)
        await until(lambda: len(accepted) == BURST)
        paused_at = asked
        await until(lambda: asked > paused_at + 3)
        assert len(accepted) == BURST, "no time has passed for the rate"
        now += 1.0
        await until(lambda: len(accepted) == CONNECTIONS)
        close_all(listener, accepted)
        return 0

    assert event_loop.run(scenario()) == 0


def test_a_listener_without_a_rate_accepts_all(waiting: socket.socket) -> None:
    """The frontend: its socket is open to the kube-apiserver only."""

    async def scenario() -> int:
        accepted: list[socket.socket] = []
        listener = Listener(Pump(event_loop.running_loop()), waiting, accepted.append)
        await until(lambda: len(accepted) == CONNECTIONS)
        close_all(listener, accepted)
        return 0

    assert event_loop.run(scenario()) == 0
