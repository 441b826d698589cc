"""Runs the list-watch law against a real API server, for as long as it is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from bootbridge.kube.client import CallObserver, KubeClient, observed
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.list_watch import GONE, EventEffect, List, ListWatch, Pause, Watch
from bootbridge.kube.requests import ApiRequest
from bootbridge.runtime import logs


@dataclass(frozen=True, slots=True)
class WatchedResource:
    """What to follow: how to list it and how to watch it from a resourceVersion on."""

    name: str
    list: Callable[[str], ApiRequest]
    watch: Callable[[str], ApiRequest]


class Reflector:
    """Keeps ``law.objects`` current; ``on_change`` is called after a list and after each change."""

    def __init__(
        self,
        client: KubeClient,
        resource: WatchedResource,
        law: ListWatch,
        on_change: Callable[[], None],
        observe: CallObserver,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._resource = resource
        self._law = law
        self._on_change = on_change
        self._observe = observe
        self._clock = clock
        self._complaint = ""

    async def run(self) -> None:
        while True:
            step = self._law.next_step()
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                await self._attempt(step)

    async def _attempt(self, step: List | Watch) -> None:
        try:
            await (self._list(step) if isinstance(step, List) else self._watch(step))
        except KubeError as error:
            self._complain(error)
            self._law.refused(error.status, error.retry_after)
        except KubeUnreachable as error:
            self._complain(error)
            self._law.lost()

    async def _list(self, step: List) -> None:
        with observed(self._observe, "list", self._clock) as report:
            answer = await self._client.send(self._resource.list(step.resource_version))
            report(answer.status)
        if self._law.listed(answer.body):
            self._complaint = ""
            self._on_change()

    async def _watch(self, step: Watch) -> None:
        with observed(self._observe, "watch", self._clock) as report:
            request = self._resource.watch(step.resource_version)
            async with aclosing(self._client.watch(request, opened=report)) as events:
                async for event in events:
                    seen = self._law.event(event)
                    if seen is EventEffect.WATCH_ENDED:
                        return
                    if seen is EventEffect.CHANGED:
                        self._on_change()
        self._law.ended()

    def _complain(self, error: Exception) -> None:
        """One line per kind of trouble, not one per attempt; a forgotten version is no trouble."""
        if str(error) != self._complaint and getattr(error, "status", 0) != GONE:
            self._complaint = str(error)
            logs.event("kube", logs.WARNING, f"cannot follow {self._resource.name}", reason=error)
