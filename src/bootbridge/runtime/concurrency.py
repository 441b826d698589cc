"""Several things at once, of which one counts; the others have ended before we go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bootbridge.common.failures import Transient
from bootbridge.errors import BootbridgeError
from bootbridge.runtime import tasks

T = TypeVar("T")
# Waits until no other attempt holds the turn, then takes it; a failed attempt gives it back.
Turn = Callable[[], Awaitable[None]]


async def cancel_and_wait(*running: asyncio.Task[Any]) -> None:
    """Cancel what still runs and wait until it is over."""
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


async def run_unless(stopped: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` gives; None if `stopped` came first, and then `work` is interrupted wherever it was."""
    working = tasks.spawn(work, "node: interruptible", awaited=True)
    stopping = tasks.spawn(stopped, "node: interrupter")
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        await cancel_and_wait(working, stopping)


async def with_timeout(seconds: float, answer: Awaitable[T], who: str) -> T:
    try:
        async with asyncio.timeout(seconds) as limit:
            return await answer
    except TimeoutError:
        if not limit.expired():
            raise
        raise Transient(f"{who} did not answer within {seconds:g} s") from None


async def first_success(
    attempts: Sequence[Callable[[Turn], Awaitable[T]]], *, apart: float, at_once: int
) -> tuple[T | None, list[BootbridgeError]]:
    """The first good answer, and what the attempts before it failed with.

    The next attempt starts when one has failed, or `apart` seconds after the one before: a dead address
    costs little time. What only one may be at, an attempt does after its turn has come; then no other has
    one, and none starts, until this one has failed: whoever is asked may take its time when many ask.
    """
    turns = asyncio.Lock()
    waiting = list(attempts)
    running: set[asyncio.Task[T | BootbridgeError]] = set()
    failures: list[BootbridgeError] = []
    try:
        while waiting or running:
            if waiting and len(running) < at_once and not turns.locked():
                number = len(attempts) - len(waiting)
                running.add(tasks.spawn(_outcome(waiting.pop(0), turns), f"node: attempt {number:04}"))
            patience = apart if waiting and len(running) < at_once else None
            done, running = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda each: each.get_name()):
                outcome = task.result()
                if not isinstance(outcome, BootbridgeError):
                    return outcome, failures
                failures.append(outcome)
        return None, failures
    finally:
        await cancel_and_wait(*running)


async def _outcome(attempt: Callable[[Turn], Awaitable[T]], turns: asyncio.Lock) -> T | BootbridgeError:
    """A failed attempt is an answer like another; anything that is not ours is a bug and stays one."""
    mine = False

    async def turn() -> None:
        nonlocal mine
        await turns.acquire()
        mine = True

    try:
        return await attempt(turn)
    except BootbridgeError as failure:
        if mine:
            turns.release()
        return failure
