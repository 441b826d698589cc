"""One control plane joins at a time: etcd takes one new member, and the next when that one has settled.

The Lease names who is joining and until when. It is taken before anything is minted, and it is free again
when it has expired, or when its holder has become a control plane since it was taken. A holder that comes
again has its time anew, but not for ever: one that reboots without end would keep all others out. Two
services that want it at once both write the version they saw, and one of them is told that it changed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError
from bootbridge.kube.leases import Lease, format_time, parse_time
from bootbridge.kube.objects import NODE, Ref, get_object
from bootbridge.kube.requests import Json, create_lease, get_lease, update_lease
from bootbridge.node.join_service.refusals import NotYet

LEASE_NAME: Final = "bootbridge-control-plane-join"
CONTROL_PLANE_LABEL: Final = "node-role.kubernetes.io/control-plane"
# How often a holder has its time, in a row, while others wait.
TIMES_IN_A_ROW: Final = 3
_ATTEMPTS: Final = 4
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409


class LeaseHeld(NotYet):
    """Another control plane is joining."""

    def __init__(self, holder: str, until: float) -> None:
        when = datetime.fromtimestamp(until, UTC).strftime("%H:%M:%SZ")
        super().__init__(f"{holder} is joining as a control plane, until {when} at the latest")
        self.holder = holder
        self.until = until


class ControlPlaneLease:
    def __init__(self, client: KubeClient, namespace: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock

    async def take(self, node: str, seconds: int) -> None:
        """For `node`, which may hold it already; raises LeaseHeld when it is another's."""
        for _ in range(_ATTEMPTS):
            found = await self._read()
            if found is not None:
                await self._must_be_free(Lease.from_json(found), node)
            if await self._write(found, node, seconds):
                return
        raise NotYet(f"the lease {LEASE_NAME} is much wanted")

    async def _must_be_free(self, lease: Lease, node: str) -> None:
        until = _ends_at(lease)
        if lease.holder in ("", node) or until <= self._clock():
            return
        if not await self._has_arrived(lease):
            raise LeaseHeld(lease.holder, until)

    async def _has_arrived(self, lease: Lease) -> bool:
        """Whether the holder became a control plane under this lease; an older Node says nothing."""
        node = await self._get_node(lease.holder)
        metadata = (node or {}).get("metadata") or {}
        created = parse_time(str(metadata.get("creationTimestamp", "")))
        if created is None or CONTROL_PLANE_LABEL not in (metadata.get("labels") or {}):
            return False
        # The API server cuts the time of creation to whole seconds.
        return lease.acquired is None or created + 1 > lease.acquired

    async def _get_node(self, name: str) -> Json | None:
        try:
            return (await self._client.send(get_object(Ref(NODE, name)))).body
        except KubeError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def _read(self) -> Json | None:
        try:
            return (await self._client.send(get_lease(self._namespace, LEASE_NAME))).body
        except KubeError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def _write(self, found: Json | None, node: str, seconds: int) -> bool:
        """False: somebody else wrote first."""
        lease = self._desired(found, node, seconds)
        request = create_lease if found is None else update_lease
        try:
            await self._client.send(request(self._namespace, lease))
        except KubeError as error:
            if error.status == _CONFLICT:
                return False
            raise
        return True

    def _desired(self, found: Json | None, node: str, seconds: int) -> Json:
        now = self._clock()
        known = Lease.from_json(found)
        same = known.holder == node and known.acquired is not None and known.valid(now)
        spec = {
            "holderIdentity": node,
            "leaseDurationSeconds": seconds,
            "acquireTime": format_time(known.acquired if same and known.acquired else now),
            "renewTime": format_time(now),
        }
        metadata = dict((found or {}).get("metadata") or {}) | {
            "name": LEASE_NAME,
            "namespace": self._namespace,
        }
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _ends_at(lease: Lease) -> float:
    """For others; for its holder it goes on while nobody else has taken it."""
    if lease.expires_at is None or lease.duration is None:
        return 0.0
    if lease.acquired is None:
        return lease.expires_at
    return min(lease.expires_at, lease.acquired + TIMES_IN_A_ROW * lease.duration)
