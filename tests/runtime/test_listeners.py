"""A listener, with the clock and the watched sockets under the control of the test."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

from bootbridge.ports.timers import Timers
from bootbridge.runtime.accept_rate import BURST, AcceptRate
from bootbridge.runtime.listeners import Listener, tcp_socket
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.sockets import READABLE

CONNECTIONS = int(BURST) * 2


class ScriptedPump:
    """What a listener uses of a pump."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers = Timers(lambda: self.now)
        self.sockets = self
        self.watched: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, events: int, action: Callable[[int], None]) -> None:
        self.watched[fd] = action

    def unwatch(self, fd: int) -> None:
        self.watched.pop(fd, None)

    def end_turn(self) -> None:
        pass

    def poll(self, times: int) -> None:
        """The sockets are ready this many times in a row."""
        for _ in range(times):
            for action in list(self.watched.values()):
                action(READABLE)


@pytest.fixture
def pump() -> ScriptedPump:
    return ScriptedPump()


@pytest.fixture
def waiting() -> Iterator[socket.socket]:
    """A listening socket with connections in its queue."""
    listening = tcp_socket("127.0.0.1", 0, "--agent-port")
    with ExitStack() as stack:
        stack.enter_context(listening)
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection(listening.getsockname()))
        yield listening


def test_a_flood_of_connections_is_accepted_in_parts(pump: ScriptedPump, waiting: socket.socket) -> None:
    """The rest waits in the kernel's queue; other sockets are served meanwhile."""
    accepted: list[socket.socket] = []
    rate = AcceptRate(pump.timers.now)
    listener = Listener(cast(Pump, pump), waiting, accepted.append, rate=rate)
    pump.poll(10)
    assert len(accepted) == BURST
    assert not pump.watched, "a paused listener takes no time"
    _pass_time(pump, rate.pause_seconds)
    pump.poll(10)
    assert BURST < len(accepted) < CONNECTIONS
    for _ in range(10):
        _pass_time(pump, 1.0)
        pump.poll(10)
    assert len(accepted) == CONNECTIONS
    listener.close()
    _close(accepted)


def test_a_listener_without_a_rate_accepts_all(pump: ScriptedPump, waiting: socket.socket) -> None:
    """The frontend: its socket is open to the kube-apiserver only."""
    accepted: list[socket.socket] = []
    listener = Listener(cast(Pump, pump), waiting, accepted.append)
    pump.poll(10)
    assert len(accepted) == CONNECTIONS
    listener.close()
    _close(accepted)


def _pass_time(pump: ScriptedPump, seconds: float) -> None:
    pump.now += seconds
    pump.timers.fire_due()


def _close(sockets: list[Any]) -> None:
    for sock in sockets:
        sock.close()
