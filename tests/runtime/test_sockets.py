"""Our sockets and asyncio share one wait: neither starves the other, and no event finds the wrong socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from functools import partial

import pytest

from bootbridge.runtime.event_loop import Loop, running_loop
from bootbridge.runtime.sockets import GONE, READABLE, SLOW_PER_BATCH, WRITABLE

DEADLINE = 10
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Callable[[], Pair]]:
    """Connected, non-blocking sockets; closed at the end if they are not yet."""
    made: list[socket.socket] = []

    def make() -> Pair:
        near, far = socket.socketpair()
        near.setblocking(False)
        made.extend((near, far))
        return near, far

    yield make
    for sock in made:
        sock.close()


def run(scenario: Coroutine[None, None, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario, DEADLINE)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(limited())


def test_a_socket_tells_what_it_is_ready_for(pair: Callable[[], Pair]) -> None:
    """Readable, writable, and hung up, which is always reported."""
    near, far = pair()
    seen: list[int] = []

    async def scenario() -> None:
        loop = running_loop()
        done = loop.create_future()

        def ready(events: int) -> None:
            seen.append(events)
            if events & GONE:
                loop.sockets.unwatch(near.fileno())
                done.set_result(None)
            elif events & WRITABLE:
                loop.sockets.watch(near.fileno(), READABLE, ready)
                far.send(b"x")
            else:
                near.recv(1)
                far.close()

        loop.sockets.watch(near.fileno(), READABLE | WRITABLE, ready)
        await done

    run(scenario())
    assert seen == [WRITABLE, READABLE, READABLE | GONE & seen[-1]]
    assert seen[-1] & GONE


def test_an_event_of_a_closed_socket_is_not_given_to_its_numbers_next_owner(
    pair: Callable[[], Pair],
) -> None:
    """Within one batch a descriptor may be closed and its number given out again."""
    one, two = pair(), pair()
    heard: list[str] = []

    async def scenario() -> None:
        loop = running_loop()
        reused: list[int] = []

        def replace(other: socket.socket) -> None:
            """The first handler closes the other socket, whose event is already reported."""
            if reused:
                return
            number, successor = other.fileno(), pair()[0]
            loop.sockets.forget(number)
            other.close()
            os.dup2(successor.fileno(), number)
            reused.append(number)
            loop.sockets.watch(number, READABLE, lambda events: heard.append("successor"))
            loop.call_later(0.05, done.set_result, None)

        done = loop.create_future()
        for (near, far), other in ((one, two[0]), (two, one[0])):
            far.send(b"x")
            loop.sockets.watch(near.fileno(), READABLE, lambda events, other=other: replace(other))
        await done
        loop.sockets.unwatch(reused[0])
        os.close(reused[0])

    run(scenario())
    assert heard == []


def test_asyncio_is_not_starved_by_a_socket_that_is_always_ready(pair: Callable[[], Pair]) -> None:
    """Timers, callbacks from within a socket's turn and other threads get their turn meanwhile."""
    near, far = pair()
    order: list[str] = []

    async def scenario() -> None:
        loop = running_loop()
        called = asyncio.Event()
        far.send(b"never read")
        turns = 0

        def turn(events: int) -> None:
            nonlocal turns
            turns += 1
            if turns == 3:
                loop.call_soon(order.append, "soon")
                loop.call_soon(called.set)

        loop.sockets.watch(near.fileno(), READABLE, turn)
        await called.wait()
        await asyncio.sleep(0.001)
        order.append("timer")
        await asyncio.to_thread(order.append, "thread")
        loop.sockets.unwatch(near.fileno())
        assert turns > 3

    run(scenario())
    assert order == ["soon", "timer", "thread"]


def test_a_failed_turn_is_reported_and_affects_no_other(pair: Callable[[], Pair]) -> None:
    """An error of ours in one connection must not end the process, nor the others' turns."""
    bad, good = pair(), pair()
    reported: list[object] = []

    async def scenario() -> None:
        loop = running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        done = loop.create_future()

        def fail(events: int) -> None:
            loop.sockets.unwatch(bad[0].fileno())
            raise ValueError("a mistake")

        def succeed(events: int) -> None:
            loop.sockets.unwatch(good[0].fileno())
            done.set_result(None)

        loop.sockets.watch(bad[0].fileno(), READABLE, fail)
        loop.sockets.watch(good[0].fileno(), READABLE, succeed)
        bad[1].send(b"x")
        good[1].send(b"x")
        await done

    run(scenario())
    assert [str(error) for error in reported] == ["a mistake"]


def test_a_batch_ends_when_all_sockets_that_were_ready_had_their_turn(pair: Callable[[], Pair]) -> None:
    pairs = [pair() for _ in range(5)]
    events: list[str] = []

    async def scenario() -> None:
        loop = running_loop()
        done = loop.create_future()

        def ended() -> None:
            events.append("end")
            if not done.done():
                done.set_result(None)

        def turn(near: socket.socket) -> None:
            events.append("turn")
            loop.sockets.unwatch(near.fileno())

        for near, far in pairs:
            far.send(b"x")
            loop.sockets.watch(near.fileno(), READABLE, lambda _, near=near: turn(near))
        loop.sockets.on_batch_end = ended
        await done

    run(scenario())
    assert events[:6] == ["turn"] * 5 + ["end"]


def test_between_two_rounds_of_the_others_only_a_few_slow_sockets_are_served(
    pair: Callable[[], Pair],
) -> None:
    """A thousand handshakes at once delay a caller by a few of them, and each of them is served."""
    served: list[int] = []
    slow = [pair() for _ in range(20)]
    near, far = pair()

    async def scenario() -> None:
        loop = running_loop()
        done = loop.create_future()

        def serve_slow(events: int, fd: int) -> None:
            loop.sockets.unwatch(fd)
            served.append(fd)

        def serve(events: int) -> None:
            served.append(near.fileno())
            if len(served) > 100 and not done.done():
                loop.sockets.unwatch(near.fileno())
                done.set_result(None)

        for slow_near, slow_far in slow:
            slow_far.send(b"x")
            fd = slow_near.fileno()
            loop.sockets.watch_slow(fd, READABLE, partial(serve_slow, fd=fd))
        far.send(b"x")  # stays readable
        loop.sockets.watch(near.fileno(), READABLE, serve)
        await done

    run(scenario())
    assert {sock.fileno() for sock, _ in slow} <= set(served)
    rounds = "".join("." if fd == near.fileno() else "s" for fd in served).split(".")
    assert max(map(len, rounds)) == SLOW_PER_BATCH


def test_a_slow_socket_can_become_an_ordinary_one_and_be_unwatched(pair: Callable[[], Pair]) -> None:
    """A stream moves after its handshake; neither epoll reports it afterwards."""
    near, far = pair()
    served: list[str] = []

    async def scenario() -> None:
        loop = running_loop()
        done = loop.create_future()

        def after(events: int) -> None:
            served.append("ordinary")
            loop.sockets.unwatch(near.fileno())
            loop.call_later(0, done.set_result, None)

        def handshake(events: int) -> None:
            served.append("slow")
            loop.sockets.watch(near.fileno(), READABLE, after)

        far.send(b"x")
        loop.sockets.watch_slow(near.fileno(), READABLE, handshake)
        await done

    run(scenario())
    assert served == ["slow", "ordinary"]
