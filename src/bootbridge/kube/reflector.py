"""Keeps a local copy of a resource by list and watch, until cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from bootbridge.kube.client import CallObserver, KubeClient, observe_call
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kinds import Kind
from bootbridge.kube.list_watch import GONE, EventEffect, List, ListWatch, Pause, Watch
from bootbridge.kube.objects import list_objects, watch_objects
from bootbridge.kube.requests import ApiRequest
from bootbridge.runtime import logs

WATCH_SECONDS_MAX = 300


@dataclass(frozen=True, slots=True)
class WatchedResource:
    """The objects to list and watch: of one kind, by namespace, label selector and field selector."""

    kind: Kind
    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def list(self, version: str) -> ApiRequest:
        return list_objects(
            self.kind, self.namespace, self.labels, fields=self.fields, resource_version=version
        )

    def watch(self, version: str) -> ApiRequest:
        return watch_objects(
            self.kind,
            self.namespace,
            self.labels,
            fields=self.fields,
            resource_version=version,
            seconds_max=WATCH_SECONDS_MAX,
        )


class Reflector:
    """Keeps ``state.objects`` current; calls ``on_change`` after a list and after each change."""

    def __init__(
        self,
        client: KubeClient,
        resource: WatchedResource,
        state: ListWatch,
        on_change: Callable[[], None],
        observe: CallObserver = lambda verb, status, reason, seconds: None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._client = client
        self._resource = resource
        self._state = state
        self._on_change = on_change
        self._observe = observe
        self._clock = clock
        self._last_error = ""

    async def run(self) -> None:
        while True:
            step = self._state.next_step()
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                await self._attempt(step)

    async def _attempt(self, step: List | Watch) -> None:
        try:
            await (self._list(step) if isinstance(step, List) else self._watch(step))
        except KubeError as error:
            self._warn(error)
            self._state.refused(error.status, error.retry_after)
        except KubeUnreachable as error:
            self._warn(error)
            self._state.lost()

    async def _list(self, step: List) -> None:
        with observe_call(self._observe, "list", self._clock) as report:
            response = await self._client.send(self._resource.list(step.resource_version))
            report(response.status)
        if self._state.listed(response.body):
            self._last_error = ""
            self._on_change()

    async def _watch(self, step: Watch) -> None:
        with observe_call(self._observe, "watch", self._clock) as report:
            request = self._resource.watch(step.resource_version)
            async with aclosing(self._client.watch(request, opened=report)) as events:
                async for event in events:
                    effect = self._state.event(event)
                    if effect is EventEffect.WATCH_ENDED:
                        return
                    if effect is EventEffect.CHANGED:
                        self._on_change()
        self._state.ended()

    def _warn(self, error: Exception) -> None:
        """Logs each distinct error once, not at every attempt; 410 Gone is part of normal operation."""
        if str(error) != self._last_error and getattr(error, "status", 0) != GONE:
            self._last_error = str(error)
            resource = self._resource
            logs.event(
                "kube",
                logs.WARNING,
                "list or watch failed",
                resource=resource.kind.plural,
                namespace=resource.namespace,
                reason=error,
            )
