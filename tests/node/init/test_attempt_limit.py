"""Guesses are limited per source and in total, and do not block a client that has the secret."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bootbridge.node.init.attempt_limit import (
    GAP_SECONDS,
    PAUSE_SECONDS_MAX,
    SOURCES_MAX,
    WAITING_MAX,
    AttemptLimit,
    TooManyAttempts,
)
from bootbridge.runtime.concurrency import cancel_and_wait
from tests.support.deterministic_loop import run

# As many as the init server has channels, with two calls on each.
CHANNELS, CALLS = 32, 2


class Guessing:
    """A limit, and sources that guess continuously."""

    def __init__(self) -> None:
        self.limit = AttemptLimit()
        self.guesses: Counter[str] = Counter()

    async def guess(self, source: str) -> None:
        while True:
            try:
                await self.limit.attempt(source, lambda: self._wrong(source))
            except TooManyAttempts:
                await asyncio.sleep(0.1)

    def _wrong(self, source: str) -> bool:
        self.guesses[source] += 1
        return False

    @asynccontextmanager
    async def guessing(self, number: int, source: Callable[[int], str]) -> AsyncIterator[None]:
        guessers = [asyncio.ensure_future(self.guess(source(each))) for each in range(number)]
        yield
        await cancel_and_wait(*guessers)

    async def client_waits(self) -> float:
        """Returns how long a client with the secret waits at another source."""
        began = asyncio.get_running_loop().time()
        assert await self.limit.attempt("192.0.2.7", lambda: True)
        return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("seed", range(5))
def test_one_guessing_source_does_not_block_a_client_with_the_secret(seed: int) -> None:
    async def scenario() -> None:
        environment = Guessing()
        async with environment.guessing(CHANNELS // 4 * CALLS, lambda number: "203.0.113.1"):
            await asyncio.sleep(60)
            assert await environment.client_waits() <= GAP_SECONDS

    run(scenario(), seed)


def test_many_guessing_sources_delay_a_client_by_one_attempt_each() -> None:
    async def scenario() -> None:
        environment = Guessing()
        async with environment.guessing(
            (CHANNELS - 1) * CALLS, lambda number: f"203.0.113.{number // CALLS}"
        ):
            await asyncio.sleep(60)
            assert await environment.client_waits() <= PAUSE_SECONDS_MAX

    run(scenario())


def test_one_source_is_limited_to_one_guess_in_eight_seconds() -> None:
    async def scenario() -> None:
        environment = Guessing()
        async with environment.guessing(16, lambda number: "203.0.113.1"):
            await asyncio.sleep(15)  # one, two, four and eight seconds
            environment.guesses.clear()
            await asyncio.sleep(100 * PAUSE_SECONDS_MAX)
            assert 99 <= environment.guesses["203.0.113.1"] <= 101

    run(scenario())


def test_all_sources_together_are_limited_to_four_guesses_a_second() -> None:
    """Independent of their number, and each gets its attempts."""

    async def scenario() -> None:
        environment = Guessing()
        async with environment.guessing(200, lambda number: f"203.0.113.{number}"):
            await asyncio.sleep(100)
            assert environment.guesses.total() <= 100 / GAP_SECONDS + 1
            assert set(environment.guesses.values()) <= {1, 2, 3}
            assert len(environment.guesses) == 200

    run(scenario())


def test_waiting_attempts_of_one_source_are_bounded() -> None:
    async def scenario() -> None:
        limit = AttemptLimit()
        assert not await limit.attempt("a", lambda: False)
        waiting = [asyncio.ensure_future(limit.attempt("a", lambda: True)) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0.5)
        with pytest.raises(TooManyAttempts):
            await limit.attempt("a", lambda: True)
        assert await limit.attempt("b", lambda: True)
        assert all(await asyncio.gather(*waiting))

    run(scenario())


def test_the_right_secret_resets_the_pauses() -> None:
    async def scenario() -> None:
        limit, loop = AttemptLimit(), asyncio.get_running_loop()
        for right in (False, False, False, True, False):
            assert await limit.attempt("a", lambda right=right: right) is right
        began = loop.time()
        await limit.attempt("a", lambda: True)
        assert loop.time() - began == pytest.approx(1.0)

    run(scenario())


def test_idle_sources_are_forgotten() -> None:
    async def scenario() -> None:
        limit = AttemptLimit()
        for number in range(2 * SOURCES_MAX):
            await limit.attempt(f"source {number}", lambda: False)
        assert len(limit._sources) == SOURCES_MAX

    run(scenario())


def test_a_source_with_waiting_attempts_is_not_forgotten() -> None:
    async def scenario() -> None:
        limit = AttemptLimit()
        await limit.attempt("another", lambda: False)
        names = [f"source {number}" for number in range(SOURCES_MAX)]
        guessers = [asyncio.ensure_future(limit.attempt(name, lambda: True)) for name in names]
        await asyncio.sleep(GAP_SECONDS / 2)
        assert set(limit._sources) == set(names)
        with pytest.raises(TooManyAttempts):
            await limit.attempt("one more", lambda: True)
        assert all(await asyncio.gather(*guessers))

    run(scenario())
