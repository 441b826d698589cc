"""Watches for evicted nodes, so that their open connections to this join service end at once."""

from __future__ import annotations

import random
from collections.abc import Callable

from bootbridge.join_service.name_bindings import EVICTED_LABEL, STATE_NAMESPACE, previous_identity
from bootbridge.kube.client import KubeClient
from bootbridge.kube.kinds import CONFIG_MAP
from bootbridge.kube.list_watch import ListWatch
from bootbridge.kube.reflector import Reflector, WatchedResource


class EvictionWatch:
    """`run` until cancelled; calls ``on_evicted`` once for each eviction, with the name's identity."""

    def __init__(self, client: KubeClient, on_evicted: Callable[[str], None], *, rng: random.Random) -> None:
        self._on_evicted = on_evicted
        self._known: set[str] = set()
        self._list_watch = ListWatch(rng)
        resource = WatchedResource(CONFIG_MAP, STATE_NAMESPACE, labels=f"{EVICTED_LABEL}=true")
        self._reflector = Reflector(client, resource, self._list_watch, self._changed)

    async def run(self) -> None:
        await self._reflector.run()

    def _changed(self) -> None:
        current = {str(each["metadata"]["uid"]): each for each in self._list_watch.objects.values()}
        for uid in current.keys() - self._known:
            if identity := previous_identity(current[uid]):
                self._on_evicted(identity)
        self._known = set(current)
