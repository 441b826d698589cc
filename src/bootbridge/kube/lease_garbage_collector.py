"""Deletes the leases of servers that died without taking theirs away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bootbridge.kube.client import CallObserver, KubeClient, observed
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.labels import Selector
from bootbridge.kube.leases import COLLECT_SECONDS, Lease
from bootbridge.kube.requests import delete_lease, list_leases
from bootbridge.runtime import logs

_NOT_FOUND, _CONFLICT = 404, 409


class LeaseGarbageCollector:
    """Every 15 s: expired leases that carry our labels are deleted, unless renewed meanwhile."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        selector: Selector,
        *,
        clock: Callable[[], float],
        observe: CallObserver = lambda verb, status, reason, seconds: None,
        culled: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._selector = selector
        self._clock = clock
        self._observe = observe
        self._culled = culled

    async def run(self) -> None:
        complaint = ""
        while True:
            try:
                await self.collect()
                complaint = ""
            except (KubeError, KubeUnreachable) as error:
                if str(error) != complaint:
                    complaint = str(error)
                    logs.event(
                        "kube",
                        logs.WARNING,
                        "cannot collect expired leases",
                        namespace=self._namespace,
                        reason=error,
                    )
            await asyncio.sleep(COLLECT_SECONDS)

    async def collect(self) -> None:
        """One round; a lease that cannot be deleted does not keep the others."""
        failed: KubeError | None = None
        for lease in await self._expired():
            try:
                await self._delete(lease)
                self._culled()
            except KubeError as error:
                # Gone already, or renewed since we looked: both are what we hoped for.
                if error.status not in (_NOT_FOUND, _CONFLICT):
                    failed = error
        if failed:
            raise failed

    async def _expired(self) -> list[Lease]:
        with observed(self._observe, "list", time.monotonic) as report:
            answer = await self._client.send(list_leases(self._namespace, str(self._selector)))
            report(answer.status)
        now = self._clock()
        leases = map(Lease.from_json, answer.body.get("items") or [])
        # The API server has selected already; deleting is worth a second look.
        return [lease for lease in leases if not lease.valid(now) and self._selector.matches(lease.labels)]

    async def _delete(self, lease: Lease) -> None:
        with observed(self._observe, "delete", time.monotonic) as report:
            request = delete_lease(self._namespace, lease.name, lease.resource_version)
            report((await self._client.send(request)).status)
