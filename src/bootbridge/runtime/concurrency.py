"""Runs concurrent work of which one result counts; the rest has ended before the caller continues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bootbridge.common.failures import Transient
from bootbridge.errors import BootbridgeError
from bootbridge.runtime import tasks

T = TypeVar("T")
# Waits until no other attempt has the turn, then takes it; a failed attempt returns it.
Turn = Callable[[], Awaitable[None]]


async def cancel_and_wait(*running: asyncio.Task[Any]) -> None:
    """Cancels the tasks and waits until they have ended."""
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


async def run_unless(stopped: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T | None:
    """Returns the result of `work`; cancels it and returns None if `stopped` completes first."""
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
        raise Transient(f"{who}: timed out after {seconds:g}s") from None


async def first_success(
    attempts: Sequence[Callable[[Turn], Awaitable[T]]], *, apart: float, at_once: int
) -> tuple[T | None, list[BootbridgeError]]:
    """Returns the first success and the errors of the attempts before it.

    The next attempt starts when one has failed, or `apart` seconds after the previous one, so that a dead
    address costs little time. An attempt awaits its turn before the part that must not run concurrently;
    until it fails, no other attempt gets the turn and none starts.
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
    """Returns the error of a failed attempt; other exceptions are bugs and propagate."""
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
