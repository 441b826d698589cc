"""Deletes the leases of servers that stopped without deleting theirs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bootbridge.kube.client import CallObserver, KubeClient, observe_call
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kinds import LEASE
from bootbridge.kube.leases import COLLECT_SECONDS, Lease
from bootbridge.kube.objects import Ref, delete_object, list_objects
from bootbridge.runtime import logs


class LeaseGarbageCollector:
    """Every 15 s, deletes the expired leases that have our labels, unless they were renewed meanwhile."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        selector: str,
        *,
        clock: Callable[[], float],
        observe: CallObserver = lambda verb, status, reason, seconds: None,
        on_deleted: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._selector = selector
        self._clock = clock
        self._observe = observe
        self._on_deleted = on_deleted

    async def run(self) -> None:
        last_error = ""
        while True:
            try:
                await self.collect()
                last_error = ""
            except (KubeError, KubeUnreachable) as error:
                if str(error) != last_error:
                    last_error = str(error)
                    logs.event(
                        "kube",
                        logs.WARNING,
                        "deleting expired leases failed",
                        namespace=self._namespace,
                        reason=error,
                    )
            await asyncio.sleep(COLLECT_SECONDS)

    async def collect(self) -> None:
        """One round. Deletes the other leases even if one cannot be deleted, then raises."""
        failed: KubeError | None = None
        for lease in await self._expired():
            try:
                await self._delete(lease)
                self._on_deleted()
            except KubeError as error:
                # Another server deleted it, or its owner renewed it.
                if not (error.is_not_found or error.is_conflict):
                    failed = error
        if failed:
            raise failed

    async def _expired(self) -> list[Lease]:
        with observe_call(self._observe, "list", time.monotonic) as report:
            response = await self._client.send(list_objects(LEASE, self._namespace, self._selector))
            report(response.status)
        now = self._clock()
        leases = map(Lease.from_json, response.body.get("items") or [])
        return [lease for lease in leases if not lease.valid(now)]

    async def _delete(self, lease: Lease) -> None:
        ref = Ref(LEASE, lease.name, self._namespace)
        with observe_call(self._observe, "delete", time.monotonic) as report:
            request = delete_object(ref, resource_version=lease.resource_version)
            report((await self._client.send(request)).status)
