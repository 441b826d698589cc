"""Long work of admin requests, in slices."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from bootbridge.runtime import sliced_work
from bootbridge.runtime.sliced_work import SHARE, SLICE_SECONDS, SlicedWork, Steps, chunks, run_at_once
from tests.support.deterministic_loop import DeterministicLoop

STEP_SECONDS = SLICE_SECONDS / 4


@pytest.fixture(autouse=True)
def cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the CPU clock finds it a quarter of a slice later."""
    ticks = count()
    monkeypatch.setattr(sliced_work.time, "thread_time", lambda: next(ticks) * STEP_SECONDS)


def work(steps: int, log: list[str], name: str = "step") -> Steps[str]:
    for _ in range(steps):
        log.append(name)
        yield
    return f"{steps} steps"


def run(body: object) -> float:
    """Runs a coroutine in virtual time; returns how long it took."""
    loop = DeterministicLoop(seed=1)
    try:
        loop.run_until_complete(body)
        return loop.time()
    finally:
        loop.close()


def test_connections_are_served_between_two_slices() -> None:
    """A callback of the event loop waits for one slice of the work, not for the rest of it."""
    log: list[str] = []

    async def body() -> None:
        asyncio.get_running_loop().call_later(SLICE_SECONDS, log.append, "connection")
        assert (await SlicedWork().run(work(100, log)))[0] == "100 steps"

    run(body())
    assert log.index("connection") == SLICE_SECONDS / STEP_SECONDS
    assert len(log) == 101


def test_the_work_takes_only_its_share_of_the_time() -> None:
    async def body() -> None:
        work_seconds.append((await SlicedWork().run(work(1000, [])))[1])

    work_seconds: list[float] = []
    # Virtual time passes in the pauses only, not while the work runs.
    paused = run(body())
    assert work_seconds[0] / (work_seconds[0] + paused) == pytest.approx(SHARE, rel=0.01)


def test_small_work_has_no_pause() -> None:
    async def body() -> None:
        await SlicedWork().run(work(2, []))

    assert run(body()) == 0.0


def test_requests_share_the_share() -> None:
    """A second request begins when the first is done."""
    log: list[str] = []

    async def body() -> None:
        shared = SlicedWork()
        await asyncio.gather(*(shared.run(work(50, log, name)) for name in "ab"))

    run(body())
    assert log in (["a"] * 50 + ["b"] * 50, ["b"] * 50 + ["a"] * 50)


def test_after_a_failure_or_a_caller_that_left_the_next_one_is_served() -> None:
    def fails() -> Steps[None]:
        yield
        raise ValueError("invalid")

    async def body() -> None:
        shared = SlicedWork()
        with pytest.raises(ValueError, match="invalid"):
            await shared.run(fails())
        left = asyncio.ensure_future(shared.run(work(1000, [])))
        await asyncio.sleep(SLICE_SECONDS)
        left.cancel()
        assert (await shared.run(work(3, [])))[0] == "3 steps"

    run(body())


def test_without_an_event_loop_the_work_is_done_at_once() -> None:
    assert run_at_once(work(7, [])) == "7 steps"


def test_chunks_contain_every_item_once() -> None:
    items = list(range(sliced_work.CHUNK_ITEMS * 2 + 3))
    found = list(chunks(items))
    assert [item for chunk in found for item in chunk] == items
    assert max(map(len, found)) == sliced_work.CHUNK_ITEMS
    assert list(chunks([])) == []
