"""Starts every asyncio task: each has a name, a reference that keeps it alive, and its failure is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from bootbridge.runtime import logs

_running: Final[set[asyncio.Task[Any]]] = set()


def spawn(work: Coroutine[Any, Any, Any], name: str, *, awaited: bool = False) -> asyncio.Task[Any]:
    """Starts a task. With `awaited`, the caller reads its result, so a failure is not logged here."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_running.discard if awaited else _done)
    return task


def _done(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and task.exception() is not None:
        logs.event("runtime", logs.ERROR, "task failed", task=task.get_name(), reason=repr(task.exception()))
