"""A proxy server's own lease: created, renewed while the server lives, deleted when it stops."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.leases import RENEW_JITTER, RENEW_SECONDS, Lease, lease_name, parse_time, server_lease
from bootbridge.kube.requests import Json, create_lease, delete_lease, get_lease, update_lease
from bootbridge.runtime import logs

RETRY_SECONDS_MIN = 0.2
RETRY_SECONDS_MAX = 7.0
WITHDRAW_SECONDS_MAX = 5.0
_NOT_FOUND = 404
_CONFLICT = 409


class LeasePublisher:
    """``run`` until cancelled, then ``withdraw``."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        server_id: str,
        labels: Mapping[str, str],
        *,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self.name = lease_name(server_id)
        self._client = client
        self._namespace = namespace
        self._server_id = server_id
        self._labels = labels
        self._clock = clock
        self._rng = rng
        self._stored: Json | None = None  # as the API server last answered
        self._last_renewal = ""  # renewTime of the last write, answered or not

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                await self.publish()
                failures = 0
            except (KubeError, KubeUnreachable) as error:
                failures += 1
                if failures == 1:
                    self._warn("cannot renew lease", error)
            await asyncio.sleep(self.delay(failures))

    def delay(self, failures: int) -> float:
        """Seconds until the next write: the renew interval, or after failures an ever longer retry."""
        if not failures:
            return RENEW_SECONDS * (1 + RENEW_JITTER * self._rng.random())
        longest = min(RETRY_SECONDS_MIN * 2 ** min(failures - 1, 16), RETRY_SECONDS_MAX)
        return longest * self._rng.uniform(0.5, 1.0)

    async def publish(self) -> None:
        """Create or renew once; a lease changed or deleted by others is read again first."""
        if self._stored is not None:
            try:
                return await self._renew(self._stored)
            except KubeError as error:
                if error.status not in (_NOT_FOUND, _CONFLICT):
                    raise
                self._stored = None
        found = await self._read()
        await (self._create() if found is None else self._renew(found))
        return None

    async def withdraw(self) -> None:
        """Delete our lease if it is still as we left it; never raises, never takes long."""
        try:
            async with asyncio.timeout(WITHDRAW_SECONDS_MAX):
                await self._delete_own()
        except (KubeError, KubeUnreachable, TimeoutError) as error:
            if getattr(error, "status", 0) != _NOT_FOUND:
                self._warn("own lease stays until it expires", str(error) or "no answer")

    def _warn(self, message: str, reason: object) -> None:
        logs.event("kube", logs.WARNING, message, lease=f"{self._namespace}/{self.name}", reason=reason)

    async def _delete_own(self) -> None:
        if not self._last_renewal:
            return
        # Read first: the last write may have arrived without its answer, and a successor with our id may
        # already hold the lease, which is then his.
        found = await self._read()
        lease = Lease.from_json(found)
        if lease.holder == self._server_id and lease.renewed == parse_time(self._last_renewal):
            await self._client.send(delete_lease(self._namespace, self.name, lease.resource_version))

    async def _read(self) -> Json | None:
        try:
            return (await self._client.send(get_lease(self._namespace, self.name))).body
        except KubeError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def _create(self) -> None:
        request = create_lease(self._namespace, self._desired(None))
        self._stored = (await self._client.send(request)).body

    async def _renew(self, base: Json) -> None:
        request = update_lease(self._namespace, self._desired(base))
        self._stored = (await self._client.send(request)).body

    def _desired(self, base: Json | None) -> Json:
        lease = server_lease(self.name, self._namespace, self._server_id, self._labels, self._clock(), base)
        self._last_renewal = lease["spec"]["renewTime"]
        return lease
