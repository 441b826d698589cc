"""Publishes a proxy server's own lease: creates it, renews it, and deletes it at shutdown."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kinds import LEASE
from bootbridge.kube.leases import RENEW_JITTER, RENEW_SECONDS, Lease, lease_name, parse_time, server_lease
from bootbridge.kube.objects import Ref, create_object, replace_object
from bootbridge.kube.requests import Json
from bootbridge.runtime import logs

RETRY_SECONDS_MIN = 0.2
RETRY_SECONDS_MAX = 7.0
WITHDRAW_SECONDS_MAX = 5.0


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
        self.ref = Ref(LEASE, lease_name(server_id), namespace)
        self._client = client
        self._server_id = server_id
        self._labels = labels
        self._clock = clock
        self._rng = rng
        self._stored: Json | None = None  # as in the API server's last response
        self._last_renewal = ""  # renewTime of the last write, also of one without a response

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                await self.publish()
                failures = 0
            except (KubeError, KubeUnreachable) as error:
                failures += 1
                if failures == 1:
                    self._warn("lease renewal failed", error)
            await asyncio.sleep(self.delay(failures))

    def delay(self, failures: int) -> float:
        """Seconds until the next write: the renew interval, or an exponential backoff after failures."""
        if not failures:
            return RENEW_SECONDS * (1 + RENEW_JITTER * self._rng.random())
        longest = min(RETRY_SECONDS_MIN * 2 ** min(failures - 1, 16), RETRY_SECONDS_MAX)
        return longest * self._rng.uniform(0.5, 1.0)

    async def publish(self) -> None:
        """Creates or renews the lease once; reads it again first if it was changed or deleted."""
        if self._stored is not None:
            try:
                return await self._write(self._stored)
            except KubeError as error:
                if not (error.is_not_found or error.is_conflict):
                    raise
                self._stored = None
        return await self._write(await self._client.get_or_none(self.ref))

    async def withdraw(self) -> None:
        """Deletes the lease if it is unchanged; never raises, and returns within 5 s."""
        try:
            async with asyncio.timeout(WITHDRAW_SECONDS_MAX):
                await self._delete_own()
        except (KubeError, KubeUnreachable, TimeoutError) as error:
            self._warn("deleting own lease failed, it remains until it expires", str(error) or "timed out")

    def _warn(self, message: str, reason: object) -> None:
        lease = f"{self.ref.namespace}/{self.ref.name}"
        logs.event("kube", logs.WARNING, message, lease=lease, reason=reason)

    async def _delete_own(self) -> None:
        if not self._last_renewal:
            return
        # Reads first: the last write may have arrived although its response was lost, and a new server with
        # the same id may already hold the lease.
        lease = Lease.from_json(await self._client.get_or_none(self.ref))
        if lease.holder == self._server_id and lease.renewed == parse_time(self._last_renewal):
            await self._client.delete_if_found(self.ref, resource_version=lease.resource_version)

    async def _write(self, found: Json | None) -> None:
        """Creates the lease, or renews the version that was found."""
        lease = server_lease(self.ref, self._server_id, self._labels, self._clock(), found)
        self._last_renewal = lease["spec"]["renewTime"]
        request = create_object(lease) if found is None else replace_object(lease)
        self._stored = (await self._client.send(request)).body
