"""The write batcher: concurrent requests start together, and none waits longer than WAIT_SECONDS_MAX."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from pathlib import Path

import pytest

from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_service import write_batcher
from bootbridge.join_service.write_batcher import BATCH_MAX, BATCH_MIN, WriteBatcher
from tests.join_service.environment import WORKER, Environment, caller, ticket_request

TIMEOUT_SECONDS = 30.0
ADDRESS = ip_address("10.0.1.1")


class Batching:
    """A batcher, the number of pending requests, and the requests that it let start."""

    def __init__(self, pending: int) -> None:
        self.pending = pending
        self.batcher = WriteBatcher(lambda: self.pending)
        self.started: set[int] = set()

    def arrive(self, *numbers: int) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._one(number)) for number in numbers]

    async def _one(self, number: int) -> None:
        self.pending -= 1
        await self.batcher.wait_for_batch()
        self.started.add(number)


@pytest.fixture
def no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_batcher, "WAIT_SECONDS_MAX", TIMEOUT_SECONDS)


async def run_ready_tasks() -> None:
    """Nothing in here takes more than five turns of the event loop."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("others", [0, BATCH_MIN - 1])
def test_a_request_with_few_others_pending_does_not_wait(others: int) -> None:
    """Not even for one turn of the event loop."""
    with pytest.raises(StopIteration):
        WriteBatcher(lambda: others).wait_for_batch().send(None)


@pytest.mark.usefixtures("no_timeout")
async def test_a_full_batch_starts_and_the_next_one_fills() -> None:
    batching = Batching(pending=1000)
    tasks = batching.arrive(*range(BATCH_MAX - 1))
    await run_ready_tasks()
    assert not batching.started
    tasks += batching.arrive(*range(BATCH_MAX - 1, BATCH_MAX + 5))
    await run_ready_tasks()
    assert batching.started == set(range(BATCH_MAX))
    for task in tasks[BATCH_MAX:]:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.usefixtures("no_timeout")
async def test_a_batch_starts_when_few_requests_are_pending() -> None:
    batching = Batching(pending=BATCH_MIN + 3)
    tasks = batching.arrive(0, 1, 2)
    await run_ready_tasks()
    assert not batching.started
    await asyncio.gather(*tasks, *batching.arrive(3))
    assert batching.started == {0, 1, 2, 3}


async def test_a_batch_starts_after_its_timeout() -> None:
    batching = Batching(pending=1000)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await asyncio.gather(*batching.arrive(0, 1))
        await asyncio.gather(*batching.arrive(2))
    assert batching.started == {0, 1, 2}


@pytest.mark.usefixtures("no_timeout")
async def test_a_cancelled_request_does_not_delay_its_batch() -> None:
    batching = Batching(pending=1000)
    tasks = batching.arrive(*range(BATCH_MAX - 1))
    await run_ready_tasks()
    tasks[0].cancel()
    tasks += batching.arrive(BATCH_MAX)
    await asyncio.wait(tasks)
    assert batching.started == {*range(1, BATCH_MAX - 1), BATCH_MAX}


@pytest.mark.usefixtures("no_timeout")
async def test_a_batch_writes_all_name_bindings_before_the_first_token(tmp_path: Path) -> None:
    """The service knows the number of connections from its listener."""
    instances = tuple(
        Instance(f"worker-{number}", Role.WORKER, (ADDRESS,), "", f"x509:sha256:{number:064x}")
        for number in range(BATCH_MAX)
    )
    environment = Environment(tmp_path, instances=instances)
    environment.service.connections = lambda: 1000
    tickets = [
        asyncio.create_task(environment.ticket(caller(each), ticket_request(each))) for each in instances[:-1]
    ]
    await run_ready_tasks()
    assert not environment.api.calls
    tickets.append(
        asyncio.create_task(environment.ticket(caller(instances[-1]), ticket_request(instances[-1])))
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert [each.node_name for each in await asyncio.gather(*tickets)] == [
            each.name for each in instances
        ]
    kinds = [request.path.rpartition("/")[2] for request in environment.api.calls]
    assert kinds == ["configmaps"] * BATCH_MAX + ["secrets"] * BATCH_MAX


@pytest.mark.usefixtures("no_timeout")
async def test_a_request_in_progress_is_not_pending(tmp_path: Path) -> None:
    """Of BATCH_MIN connections, one is the caller's own."""
    environment = Environment(tmp_path)
    environment.service.connections = lambda: BATCH_MIN
    async with asyncio.timeout(TIMEOUT_SECONDS / 2):
        await environment.ticket(caller(WORKER), ticket_request(WORKER))
