"""One control plane joins at a time: etcd takes one new member, and the next when that one has settled.

The Lease names who is joining and for how long. It is taken before anything is minted, and it is free again
when it has expired, or when its holder has become a control plane since it was taken. A holder that comes
again has its time anew, but not for ever: one that reboots without end would keep all others out. Two
services that want it at once both write the version they saw, and one of them is told that it changed.

No two clocks are compared where safety depends on it. A lease has expired when this service has seen it
unchanged for as long as it lasts: that is never too early, whatever time its writer took it to be. And a Node
is its holder's new one if it is another than was there when the lease was taken.
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
# The UID of the Node that its holder had when it was taken; empty if it had none.
NODE_UID_BEFORE: Final = "bootbridge.dev/node-before"
# How often a holder has its time, in a row, while others wait.
TURNS_IN_A_ROW: Final = 3
_ATTEMPTS: Final = 4


class LeaseHeld(RetryLater):
    """Another control plane is joining."""

    def __init__(self, holder: str, until: float) -> None:
        super().__init__(f"{holder} is joining as a control plane, until {_hour(until)} at the latest")
        self.holder = holder
        self.until = until


class ControlPlaneLease:
    """`clock` says what time it is, `steady` how much of it has passed."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        clock: Callable[[], float],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._ref = Ref(LEASE, LEASE_NAME, namespace)
        self._clock = clock
        self._steady = steady
        # The version of the Lease that this service saw last, and when it saw it first.
        self._seen = ("", 0.0)

    async def take(self, node: str, seconds: int) -> None:
        """For `node`, which may hold it already; raises LeaseHeld when it is another's."""
        for _ in range(_ATTEMPTS):
            found = await self._client.get_or_none(self._ref)
            lease = Lease.from_json(found)
            # By its own lease nobody is kept out but by fairness, and for that clocks are good enough.
            again = lease.holder == node and lease.valid(self._clock())
            if again:
                self._require_another_turn(lease, seconds)
            elif lease.holder != node:
                await self._require_free(lease, found)
            acquired = lease.acquired if again else None
            if await self._write(found, await self._desired(found, node, seconds, acquired)):
                return
        raise RetryLater(f"the lease {LEASE_NAME} is much wanted")

    def _require_another_turn(self, lease: Lease, seconds: int) -> None:
        """A whole one, or none: the others are told when it ends."""
        now = self._clock()
        if lease.acquired is not None and now + seconds > lease.acquired + TURNS_IN_A_ROW * seconds:
            when = _hour(now + self._left(lease))
            raise RetryLater(f"{lease.holder} has had its turns, and may ask as the others do from {when} on")

    async def _require_free(self, lease: Lease, found: Json | None) -> None:
        if not lease.holder or (left := self._left(lease)) <= 0:
            return
        if not await self._has_arrived(lease.holder, found):
            raise LeaseHeld(lease.holder, self._clock() + left)

    def _left(self, lease: Lease) -> float:
        """Seconds until it is free for others, by our own clock alone."""
        now = self._steady()
        version, since = self._seen
        if version != lease.resource_version:
            self._seen = (lease.resource_version, since := now)
        return since + (lease.duration or 0) - now

    async def _has_arrived(self, holder: str, found: Json | None) -> bool:
        """Whether the holder became a control plane under this lease; an older Node says nothing."""
        metadata = await self._node_metadata(holder)
        before = (((found or {}).get("metadata") or {}).get("annotations") or {}).get(NODE_UID_BEFORE, "")
        return CONTROL_PLANE_LABEL in (metadata.get("labels") or {}) and metadata.get("uid", "") != before

    async def _node_metadata(self, name: str) -> Json:
        """Empty where there is no such Node."""
        return (await self._client.get_or_none(Ref(NODE, name)) or {}).get("metadata") or {}

    async def _write(self, found: Json | None, lease: Json) -> bool:
        """False: somebody else wrote first."""
        client = self._client
        since = self._steady()
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
