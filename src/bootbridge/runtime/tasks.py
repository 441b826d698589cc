"""The one place where tasks are started: each has a name, and somebody who hears of its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from bootbridge.runtime import logs

_running: Final[set[asyncio.Task[Any]]] = set()


def spawn(work: Coroutine[Any, Any, Any], name: str, *, awaited: bool = False) -> asyncio.Task[Any]:
    """`awaited`: whoever starts it also asks for its result, and so hears of its failure."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_running.discard if awaited else _done)
    return task


def _done(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and task.exception() is not None:
        logs.event("runtime", logs.ERROR, "task failed", task=task.get_name(), why=repr(task.exception()))
