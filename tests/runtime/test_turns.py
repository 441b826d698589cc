"""A bug in the turn of one connection stays with that connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from bootbridge.runtime.byte_stream import PlainStream
from bootbridge.runtime.event_loop import Loop, running_loop
from bootbridge.runtime.pump import Pump

DEADLINE = 10


class Forward:
    """Copies its input to another stream, and then fails on request."""

    def __init__(self, to: PlainStream, bug: str = "") -> None:
        self._to = to
        self._bug = bug
        self.lost = ""

    def on_bytes(self, data: memoryview) -> None:
        self._to.write(data)
        if self._bug:
            raise RuntimeError(self._bug)

    def on_eof(self, gone: bool) -> None: ...
    def on_drained(self) -> None: ...

    def on_lost(self, reason: str) -> None:
        self.lost = reason


def run(scenario: Callable[[Pump], None]) -> list[str]:
    """Returns the errors reported until the loop has run everything that the scenario started."""
    reported: list[str] = []

    async def limited() -> None:
        loop = running_loop()
        reported_once = asyncio.Event()

        def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            reported.append(str(context["exception"]))
            reported_once.set()

        loop.set_exception_handler(report)
        scenario(Pump(loop))
        async with asyncio.timeout(DEADLINE):
            await reported_once.wait()
            await asyncio.sleep(0.001)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(limited())
    return reported


def _pairs(count: int) -> list[tuple[socket.socket, socket.socket]]:
    pairs = [socket.socketpair() for _ in range(count)]
    for near, far in pairs:
        near.setblocking(False)
        far.settimeout(DEADLINE)
    return pairs


def test_bytes_written_by_a_failed_turn_are_not_overwritten_by_the_next_read() -> None:
    """Promise 2: both turns read into one buffer, and no byte of one connection reaches another."""
    (broken, to_broken), (sound, to_sound), (out1, from1), (out2, from2) = pairs = _pairs(4)
    handlers: list[Forward] = []

    def scenario(pump: Pump) -> None:
        first, second = (PlainStream(pump, sock, unix=True) for sock in (out1, out2))
        handlers.extend([Forward(first, "a bug"), Forward(second)])
        for sock, handler in zip((broken, sound), handlers, strict=True):
            PlainStream(pump, sock, unix=True).start(handler)
        to_broken.send(b"A" * 1000)
        to_sound.send(b"B" * 1000)

    assert run(scenario) == ["a bug"]
    assert from1.recv(2000) == b"A" * 1000
    assert from2.recv(2000) == b"B" * 1000
    assert [handler.lost for handler in handlers] == ["internal error", ""]
    for pair in pairs:
        for sock in pair:
            sock.close()


def test_a_failed_timer_does_not_prevent_others_from_firing() -> None:
    """Keepalives, deadlines and drains share one timer queue."""
    fired: list[str] = []

    def scenario(pump: Pump) -> None:
        def fail() -> None:
            raise RuntimeError("a bug")

        pump.timers.after(0.0, fail)
        pump.timers.after(0.0, lambda: fired.append("next"))

    assert run(scenario) == ["a bug"]
    assert fired == ["next"]


def test_a_failed_turn_does_not_prevent_others() -> None:
    """Deferred actions run in separate turns too."""
    done: list[str] = []

    def scenario(pump: Pump) -> None:
        def fail() -> None:
            raise RuntimeError("a bug")

        pump.soon(fail)
        pump.soon(lambda: done.append("soon"))
        pump.flush_later(fail)
        pump.flush_later(lambda: done.append("later"))

    assert run(scenario) == ["a bug", "a bug"]
    assert done == ["soon", "later"]
