"""Helpers for tests of the init server: an instance that only an operator uses, played in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bootbridge.node.init.messages import InitEvent, InitRequest
from bootbridge.runtime.grpc import RpcError
from tests.support.deterministic_loop import run
from tests.support.node_environment import (
    Environment,
    started,
)

NOTHING_DONE = ("register extend", "install", "reset", "init", "join", "ticket files")


def untouched(environment: Environment) -> bool:
    return (
        environment.lock.holder is None
        and environment.persistent.record is None
        and not set(NOTHING_DONE) & set(environment.calls)
    )


def lone(**given: Any) -> Environment:
    """An instance without a join service."""
    return Environment(tickets=False, **given)


def scenario(environment: Environment, play: Callable[[Environment], Awaitable[None]], seed: int = 0) -> int:
    """Runs `play` against the process and returns the exit code."""

    async def both() -> int:
        process = started(environment)
        await environment.listener.opened.wait()
        await play(environment)
        environment.stop.set()
        return await process

    return run(both(), seed)


async def refused(environment: Environment, request: InitRequest) -> tuple[RpcError, list[InitEvent]]:
    events: list[InitEvent] = []
    with pytest.raises(RpcError) as caught:
        await environment.listener.call_into(request, events)
    return caught.value, events
