"""Tickets that are wanted at the same time begin together, and nobody waits for those who do not come."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from pathlib import Path

import pytest

from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_service import write_batcher as convoy_module
from bootbridge.join_service.write_batcher import BATCH_MAX, BATCH_MIN, WriteBatcher
from tests.join_service.environment import WORKER, World, asking, caller

PATIENCE = 30.0
ADDRESS = ip_address("10.0.1.1")


class Road:
    """A convoy, how many are on their way to it, and who has left with it."""

    def __init__(self, on_their_way: int) -> None:
        self.on_their_way = on_their_way
        self.convoy = WriteBatcher(lambda: self.on_their_way)
        self.left: set[int] = set()

    def arrive(self, *numbers: int) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._one(number)) for number in numbers]

    async def _one(self, number: int) -> None:
        self.on_their_way -= 1
        await self.convoy.join()
        self.left.add(number)


@pytest.fixture
def nobody_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that time decides nothing."""
    monkeypatch.setattr(convoy_module, "WAIT_SECONDS_MAX", PATIENCE)


async def passed() -> None:
    """Everybody who can has gone on; nothing in here takes more steps."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("others", [0, BATCH_MIN - 1])
def test_whoever_comes_alone_or_with_few_does_not_wait_at_all(others: int) -> None:
    """Not even for a turn of the event loop."""
    with pytest.raises(StopIteration):
        WriteBatcher(lambda: others).join().send(None)


@pytest.mark.usefixtures("nobody_gives_up")
async def test_a_full_convoy_leaves_and_the_next_one_gathers() -> None:
    road = Road(on_their_way=1000)
    tasks = road.arrive(*range(BATCH_MAX - 1))
    await passed()
    assert not road.left
    tasks += road.arrive(*range(BATCH_MAX - 1, BATCH_MAX + 5))
    await passed()
    assert road.left == set(range(BATCH_MAX))
    for task in tasks[BATCH_MAX:]:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.usefixtures("nobody_gives_up")
async def test_it_leaves_when_nobody_is_left_to_be_waited_for() -> None:
    road = Road(on_their_way=BATCH_MIN + 3)
    tasks = road.arrive(0, 1, 2)
    await passed()
    assert not road.left
    await asyncio.gather(*tasks, *road.arrive(3))
    assert road.left == {0, 1, 2, 3}


async def test_it_leaves_without_those_who_do_not_come() -> None:
    road = Road(on_their_way=1000)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*road.arrive(0, 1))
        await asyncio.gather(*road.arrive(2))
    assert road.left == {0, 1, 2}


@pytest.mark.usefixtures("nobody_gives_up")
async def test_one_who_gave_up_is_left_behind_and_holds_nobody_up() -> None:
    road = Road(on_their_way=1000)
    tasks = road.arrive(*range(BATCH_MAX - 1))
    await passed()
    tasks[0].cancel()
    tasks += road.arrive(BATCH_MAX)
    await asyncio.wait(tasks)
    assert road.left == {*range(1, BATCH_MAX - 1), BATCH_MAX}


@pytest.mark.usefixtures("nobody_gives_up")
async def test_a_crowd_takes_its_names_together_and_each_still_before_its_token(tmp_path: Path) -> None:
    """As many as one convoy has; the service knows how many more are connected from its listener."""
    crowd = tuple(
        Instance(f"worker-{number}", Role.WORKER, (ADDRESS,), "", f"sha256:{number:064x}")
        for number in range(BATCH_MAX)
    )
    world = World(tmp_path, instances=crowd)
    world.service.connections = lambda: 1000
    tickets = [asyncio.create_task(world.ticket(caller(each), asking(each))) for each in crowd[:-1]]
    await passed()
    assert not world.api.requests
    tickets.append(asyncio.create_task(world.ticket(caller(crowd[-1]), asking(crowd[-1]))))
    async with asyncio.timeout(PATIENCE):
        assert [each.node_name for each in await asyncio.gather(*tickets)] == [each.name for each in crowd]
    kinds = [request.path.rpartition("/")[2] for request in world.api.requests]
    assert kinds == ["configmaps"] * BATCH_MAX + ["secrets"] * BATCH_MAX


@pytest.mark.usefixtures("nobody_gives_up")
async def test_whoever_has_asked_is_on_the_way_no_more(tmp_path: Path) -> None:
    """Of just as many connections as would be worth waiting for, one is the caller's own."""
    world = World(tmp_path)
    world.service.connections = lambda: BATCH_MIN
    async with asyncio.timeout(PATIENCE / 2):
        await world.ticket(caller(WORKER), asking(WORKER))
