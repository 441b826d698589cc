"""Counts the proxy servers by watching their leases.

The count starts at 1, so an unreachable API server does not delay the agent's start. When no lease is
valid the last count stays: a stale view is more likely than the loss of all servers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from bootbridge.kube.client import CallObserver, KubeClient
from bootbridge.kube.kinds import LEASE
from bootbridge.kube.leases import Lease, LeaseCount
from bootbridge.kube.list_watch import ListWatch
from bootbridge.kube.reflector import Reflector, WatchedResource

# A wall clock that is set forward is noticed after this time at the latest.
RECOUNT_SECONDS_MAX = 60.0


class LeaseCounter:
    """``run`` until cancelled; ``count`` is always usable, ``on_count`` gets each new value."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        selector: str,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        on_count: Callable[[int], None] = lambda count: None,
        observe: CallObserver = lambda verb, status, reason, seconds: None,
    ) -> None:
        self.count = 1
        self._clock = clock
        self._on_count = on_count
        self._state = ListWatch(rng)
        self._timer: asyncio.TimerHandle | None = None
        leases = WatchedResource(LEASE, namespace, labels=selector)
        self._reflector = Reflector(client, leases, self._state, self.recount, observe, time.monotonic)

    async def run(self) -> None:
        try:
            await self._reflector.run()
        finally:
            self._cancel_timer()

    def recount(self) -> None:
        """Counts now, and again when the next lease expires, because expiry causes no watch event."""
        self._cancel_timer()
        now = self._clock()
        leases = LeaseCount.of(map(Lease.from_json, self._state.objects.values()), now)
        if leases.next_expiry is not None:
            wait = min(max(0.001, leases.next_expiry - now), RECOUNT_SECONDS_MAX)
            self._timer = asyncio.get_running_loop().call_later(wait, self.recount)
        if leases.valid and leases.valid != self.count:
            self.count = leases.valid
            self._on_count(self.count)

    def _cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
