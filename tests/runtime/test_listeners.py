"""A listener on a real socket; the clock of its rate is under the control of the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
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


def close_all(listener: Listener, accepted: list[socket.socket]) -> None:
    listener.close()
    for sock in accepted:
        sock.close()


def test_a_flood_of_connections_is_accepted_in_parts(waiting: socket.socket) -> None:
    """The rest waits in the kernel's queue; after each pause the listener tries again."""

    async def scenario() -> int:
        now, asked_after_burst = 1000.0, 0
        paused, complete = asyncio.Event(), asyncio.Event()
        accepted: list[socket.socket] = []

        def clock() -> float:
            nonlocal asked_after_burst
            asked_after_burst += len(accepted) >= BURST
            if asked_after_burst > 3:
                paused.set()
            return now

        def accept(sock: socket.socket) -> None:
            accepted.append(sock)
            if len(accepted) == CONNECTIONS:
                complete.set()

        async with asyncio.timeout(DEADLINE_SECONDS):
            listener = Listener(Pump(event_loop.running_loop()), waiting, accept, rate=AcceptRate(clock))
            await paused.wait()
            assert len(accepted) == BURST, "no time has passed for the rate"
            now += 1.0
            await complete.wait()
        close_all(listener, accepted)
        return 0

    assert event_loop.run(scenario()) == 0


def test_a_listener_without_a_rate_accepts_all(waiting: socket.socket) -> None:
    """The frontend: its socket is open to the kube-apiserver only."""

    async def scenario() -> int:
        complete = asyncio.Event()
        accepted: list[socket.socket] = []

        def accept(sock: socket.socket) -> None:
            accepted.append(sock)
            if len(accepted) == CONNECTIONS:
                complete.set()

        async with asyncio.timeout(DEADLINE_SECONDS):
            listener = Listener(Pump(event_loop.running_loop()), waiting, accept)
            await complete.wait()
        close_all(listener, accepted)
        return 0

    assert event_loop.run(scenario()) == 0
