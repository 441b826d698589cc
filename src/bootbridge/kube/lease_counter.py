"""How many proxy servers there are, as told by their leases, known the moment it changes.

The count starts at 1 and is there at once: an API server that cannot be reached keeps
nobody from starting. With no valid lease in sight the last good count stays: it is
likelier that we are blind than that all servers are gone.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from bootbridge.kube.client import CallObserver, KubeClient
from bootbridge.kube.labels import Selector
from bootbridge.kube.leases import Lease, LeaseCount
from bootbridge.kube.list_watch import ListWatch
from bootbridge.kube.reflector import Reflector, WatchedResource
from bootbridge.kube.requests import list_leases, watch_leases

WATCH_SECONDS_MAX = 300
# A wall clock that is set forward is noticed this late at most.
RECOUNT_SECONDS_MAX = 60.0


class LeaseCounter:
    """``run`` until cancelled; ``count`` is always usable, ``on_count`` is told each new value."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        selector: Selector,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        on_count: Callable[[int], None] = lambda count: None,
        observe: CallObserver = lambda verb, status, reason, seconds: None,
    ) -> None:
        self.count = 1
        self._selector = selector
        self._clock = clock
        self._on_count = on_count
        self._law = ListWatch(rng)
        self._timer: asyncio.TimerHandle | None = None
        text = str(selector)
        leases = WatchedResource(
            name=f"server leases in {namespace}",
            list=lambda version: list_leases(namespace, text, version),
            watch=lambda version: watch_leases(namespace, text, version, WATCH_SECONDS_MAX),
        )
        self._follower = Reflector(client, leases, self._law, self.recount, observe, time.monotonic)

    async def run(self) -> None:
        try:
            await self._follower.run()
        finally:
            self._cancel_timer()

    def recount(self) -> None:
        """Count now, and again when the next lease runs out, for no event tells of that."""
        self._cancel_timer()
        leases = map(Lease.from_json, self._law.objects.values())
        now = self._clock()
        tally = LeaseCount.of((lease for lease in leases if self._selector.matches(lease.labels)), now)
        if tally.next_expiry is not None:
            wait = min(max(0.001, tally.next_expiry - now), RECOUNT_SECONDS_MAX)
            self._timer = asyncio.get_running_loop().call_later(wait, self.recount)
        if tally.valid and tally.valid != self.count:
            self.count = tally.valid
            self._on_count(self.count)

    def _cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
