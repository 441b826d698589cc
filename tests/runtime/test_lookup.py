"""Looking up names."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator

import pytest

from bootbridge.runtime import lookup
from bootbridge.runtime.lookup import LookupPurpose

ANSWER = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))]


class Resolver:
    """Answers names below `good.example` at once, and others not before it is released."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.released = threading.Event()

    def __call__(self, host: str, port: None, type: int) -> object:
        self.asked[host] += 1
        if not host.endswith("good.example"):
            self.released.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return ANSWER


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.released.set()


def run(resolver: Resolver, steps: Coroutine[object, object, None]) -> None:
    """Runs the steps, then lets the lookups end: each leaves nothing behind."""

    async def all_of_it() -> None:
        await steps
        resolver.released.set()
        for _ in range(2000):
            if lookup._in_progress:
                await asyncio.sleep(0.01)
        assert not lookup._in_progress
        assert not lookup._counts

    asyncio.run(all_of_it())


async def start(
    count: int, name: str, purpose: LookupPurpose = LookupPurpose.DIAL
) -> list[asyncio.Task[object]]:
    """Starts lookups of `name`, in which %d is their number; returns when each has begun or failed."""
    tasks: list[asyncio.Task[object]] = [
        asyncio.create_task(lookup.look_up(name.replace("%d", str(number)), 80, purpose))
        for number in range(count)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def refused(tasks: list[asyncio.Task[object]]) -> int:
    return sum(isinstance(task.exception(), socket.gaierror) for task in tasks if task.done())


async def end(tasks: list[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_callers_of_one_name_share_one_lookup(resolver: Resolver) -> None:
    """Also callers that come after the first ones have gone; another name is answered."""

    async def steps() -> None:
        for _ in range(3):
            tasks = await start(lookup.LOOKUPS_MAX + 1, "dead.example")
            assert refused(tasks) == 0
            await end(tasks)
        assert len(lookup._in_progress) == 1
        assert await lookup.look_up("pod.good.example", 443, LookupPurpose.DIAL) == [
            (*ANSWER[0][:4], ("192.0.2.1", 443))
        ]
        late = await start(2, "DEAD.example")
        resolver.released.set()
        ends = await asyncio.gather(*late, return_exceptions=True)
        assert [str(each) for each in ends] == ["[Errno -3] no answer"] * 2
        assert resolver.asked == {"dead.example": 1, "pod.good.example": 1}

    run(resolver, steps())


def test_the_names_of_a_dead_domain_leave_lookups_for_others(resolver: Resolver) -> None:
    async def steps() -> None:
        tasks = await start(1000, "n%d.sub%d.dead.example")
        assert refused(tasks) == 1000 - lookup.LOOKUPS_PER_DOMAIN_MAX
        assert await lookup.look_up("pod.good.example", 443, LookupPurpose.DIAL)
        await end(tasks)

    run(resolver, steps())


def test_dialled_names_leave_lookups_for_the_programs_own(resolver: Resolver) -> None:
    """Whose domains are all different."""

    async def steps() -> None:
        tasks = await start(1000, "www.dead%d")
        assert refused(tasks) == 1000 - lookup.DIAL_LOOKUPS_MAX
        assert await lookup.look_up("server.good.example", 8091)
        own = await start(1000, "own.dead%d", LookupPurpose.OWN)
        assert len(lookup._in_progress) == lookup.LOOKUPS_MAX
        await end(tasks + own)

    run(resolver, steps())


def test_a_machine_without_threads_left_fails_a_lookup_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often: each is an ordinary failed lookup, and none counts as one that is under way."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def ask() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            for _ in range(lookup.LOOKUPS_MAX + 1):
                with pytest.raises(socket.gaierror, match="can't start new thread"):
                    await lookup.look_up("localhost", 80)
        assert await lookup.look_up("localhost", 80)

    asyncio.run(ask())
