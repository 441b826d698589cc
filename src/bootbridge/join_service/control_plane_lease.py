"""The control-plane lease: one control plane joins at a time, as etcd must add one member after the other.

The Lease names the joining node and its duration. It is acquired before a token is created, and free again
when it has expired or its holder has become a control plane. A holder that asks again gets a new turn, at
most TURNS_IN_A_ROW: one that reboots in a loop must not block the others. Of two services that write at the
same time, the API server refuses one with a conflict.

Safety never depends on comparing two clocks. A lease has expired when this service has seen it unchanged for
its whole duration, which is never too early. And a Node is the holder's new one if its UID differs from the
one recorded when the lease was acquired.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from bootbridge.join_api.errors import RetryLater
from bootbridge.kube.client import KubeClient
from bootbridge.kube.kinds import LEASE, NODE
from bootbridge.kube.leases import Lease, format_time, lease_object
from bootbridge.kube.objects import Ref
from bootbridge.kube.requests import Json

LEASE_NAME: Final = "bootbridge-control-plane-join"
CONTROL_PLANE_LABEL: Final = "node-role.kubernetes.io/control-plane"
# Annotation: the UID of the holder's Node when the lease was acquired; empty if there was none.
NODE_UID_BEFORE: Final = "bootbridge.dev/node-before"
# Consecutive turns of one holder while others wait.
TURNS_IN_A_ROW: Final = 3
_ATTEMPTS: Final = 4


class LeaseHeld(RetryLater):
    """Another control plane is joining."""

    def __init__(self, holder: str, until: float) -> None:
        super().__init__(f"control plane {holder} is joining, until {_hour(until)} at the latest")
        self.holder = holder
        self.until = until


class ControlPlaneLease:
    """`clock` is the wall clock, `monotonic` measures durations."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._ref = Ref(LEASE, LEASE_NAME, namespace)
        self._clock = clock
        self._monotonic = monotonic
        # The Lease's last seen resourceVersion, and when this service saw it first.
        self._seen = ("", 0.0)

    async def acquire(self, node: str, seconds: int) -> None:
        """Acquires or renews it for `node`; raises LeaseHeld while another node holds it."""
        for _ in range(_ATTEMPTS):
            found = await self._client.get_or_none(self._ref)
            lease = Lease.from_json(found)
            # For a renewal only fairness is at stake, not safety: here comparing clocks is good enough.
            renewal = lease.holder == node and lease.valid(self._clock())
            if renewal:
                self._require_another_turn(lease, seconds)
            elif lease.holder != node:
                await self._require_free(lease, found)
            acquired = lease.acquired if renewal else None
            if await self._write(found, await self._desired(found, node, seconds, acquired)):
                return
        raise RetryLater(f"lease {LEASE_NAME}: write conflict after {_ATTEMPTS} attempts")

    def _require_another_turn(self, lease: Lease, seconds: int) -> None:
        """Raises RetryLater unless a whole turn is left: others were given the end of the last one."""
        now = self._clock()
        if lease.acquired is not None and now + seconds > lease.acquired + TURNS_IN_A_ROW * seconds:
            when = _hour(now + self._seconds_left(lease))
            raise RetryLater(
                f"{lease.holder} used {TURNS_IN_A_ROW} turns in a row; the next is possible from {when} on"
            )

    async def _require_free(self, lease: Lease, found: Json | None) -> None:
        if not lease.holder or (left := self._seconds_left(lease)) <= 0:
            return
        if not await self._has_joined(lease.holder, found):
            raise LeaseHeld(lease.holder, self._clock() + left)

    def _seconds_left(self, lease: Lease) -> float:
        """Returns the seconds until it expires, by our own monotonic clock."""
        now = self._monotonic()
        version, since = self._seen
        if version != lease.resource_version:
            self._seen = (lease.resource_version, since := now)
        return since + (lease.duration or 0) - now

    async def _has_joined(self, holder: str, found: Json | None) -> bool:
        """Whether the holder became a control plane under this lease; an older Node does not count."""
        metadata = await self._node_metadata(holder)
        before = (((found or {}).get("metadata") or {}).get("annotations") or {}).get(NODE_UID_BEFORE, "")
        return CONTROL_PLANE_LABEL in (metadata.get("labels") or {}) and metadata.get("uid", "") != before

    async def _node_metadata(self, name: str) -> Json:
        """Returns {} if there is no such Node."""
        return (await self._client.get_or_none(Ref(NODE, name)) or {}).get("metadata") or {}

    async def _write(self, found: Json | None, lease: Json) -> bool:
        """Returns False on a conflict."""
        client = self._client
        since = self._monotonic()
        written = await (client.create_or_conflict if found is None else client.replace_or_conflict)(lease)
        if written is None:
            return False
        self._seen = (Lease.from_json(written).resource_version, since)
        return True

    async def _desired(self, found: Json | None, node: str, seconds: int, acquired: float | None) -> Json:
        now = self._clock()
        before = str((await self._node_metadata(node)).get("uid", ""))
        spec = {
            "holderIdentity": node,
            "leaseDurationSeconds": seconds,
            "acquireTime": format_time(now if acquired is None else acquired),
            "renewTime": format_time(now),
        }
        return lease_object(self._ref, found, spec, annotations={NODE_UID_BEFORE: before})


def _hour(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%SZ")
