"""One control plane joins at a time; a failed one blocks the others only until its lease expires."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bootbridge.join_api.errors import RetryLater
from bootbridge.join_service.control_plane_lease import LEASE_NAME, ControlPlaneLease, LeaseHeld
from bootbridge.kube.errors import KubeError
from bootbridge.kube.leases import format_time
from tests.join_service.environment import NAMESPACE, NOW
from tests.support.fake_api_objects import MemoryApi, failing

PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE_NAME}"


class Services:
    """Two join services at one API server."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.now = NOW
        self.one, self.other = self.service(), self.service()

    def service(self, *, ahead: float = 0.0) -> ControlPlaneLease:
        """A newly started one, with a wrong wall clock if `ahead`."""
        return ControlPlaneLease(
            self.api,  # type: ignore[arg-type]
            NAMESPACE,
            lambda: self.now + ahead,
            lambda: self.now,
        )

    async def acquire(self, node: str) -> None:
        await self.one.acquire(node, 600)

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.api.read(PATH)["spec"])

    def node(self, name: str, *, uid: str = "new", control_plane: bool = True) -> None:
        labels = {"node-role.kubernetes.io/control-plane": ""} if control_plane else {}
        self.api.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name, "labels": labels, "uid": uid}})


@pytest.fixture
def services() -> Services:
    return Services()


async def test_the_lease_has_holder_and_duration(services: Services) -> None:
    await services.acquire("control-1")
    assert services.spec == {
        "holderIdentity": "control-1",
        "leaseDurationSeconds": 600,
        "acquireTime": format_time(NOW),
        "renewTime": format_time(NOW),
    }


async def test_a_second_control_plane_gets_the_holder_and_the_waiting_time(services: Services) -> None:
    await services.acquire("control-1")
    with pytest.raises(LeaseHeld, match="control plane control-1 is joining, until 08:10:00Z") as held:
        await services.acquire("control-2")
    assert (held.value.holder, held.value.until) == ("control-1", NOW + 600)


async def test_the_holder_can_renew(services: Services) -> None:
    await services.acquire("control-1")
    services.now += 100
    await services.acquire("control-1")
    assert services.spec["renewTime"] == format_time(NOW + 100)
    assert services.spec["acquireTime"] == format_time(NOW)


async def test_renewals_are_limited(
    services: Services,
) -> None:
    """For example of an instance that reboots in a loop before it has joined."""
    while services.now <= NOW + 2 * 600:
        await services.acquire("control-1")
        with pytest.raises(LeaseHeld) as held:
            await services.acquire("control-2")
        assert held.value.until <= NOW + 3 * 600
        services.now += 300
    with pytest.raises(RetryLater, match=r"control-1 used 3 turns in a row; .* from 08:30:00Z on"):
        await services.acquire("control-1")
    services.now = NOW + 3 * 600
    await services.acquire("control-2")
    with pytest.raises(LeaseHeld, match="control-2 is joining"):
        await services.acquire("control-1")


async def test_every_turn_has_its_full_duration(services: Services) -> None:
    """Including the last of a row."""
    await services.acquire("control-1")
    services.now += 2 * 600 - 1
    await services.acquire("control-1")
    services.now += 599
    with pytest.raises(LeaseHeld):
        await services.acquire("control-2")
    services.now += 1
    await services.acquire("control-2")


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
async def test_expiry_does_not_depend_on_the_wall_clock(services: Services, ahead: float) -> None:
    """It may have been renewed just before it was seen first: late is safe, early is not."""
    other = services.service(ahead=ahead)
    await services.acquire("control-1")
    services.now += 100
    with pytest.raises(LeaseHeld):
        await other.acquire("control-2", 600)
    services.now += 599
    with pytest.raises(LeaseHeld):
        await other.acquire("control-2", 600)
    services.now += 1
    await other.acquire("control-2", 600)


async def test_a_renewal_restarts_the_expiry(services: Services) -> None:
    await services.acquire("control-1")
    with pytest.raises(LeaseHeld):
        await services.other.acquire("control-2", 600)
    services.now += 599
    await services.acquire("control-1")
    services.now += 1
    with pytest.raises(LeaseHeld):
        await services.other.acquire("control-2", 600)


async def test_a_former_holder_does_not_wait_for_its_own_lease(services: Services) -> None:
    """Also after a restart of the service."""
    await services.acquire("control-1")
    services.now += 86_400
    await services.service().acquire("control-1", 600)
    assert services.spec["acquireTime"] == format_time(NOW + 86_400)


async def test_an_expired_lease_can_be_acquired(services: Services) -> None:
    await services.acquire("control-1")
    services.now += 600
    await services.acquire("control-2")
    assert services.spec["holderIdentity"] == "control-2"
    assert services.spec["acquireTime"] == format_time(NOW + 600)


async def test_a_joined_holder_frees_the_lease(services: Services) -> None:
    await services.acquire("control-1")
    services.node("control-1")
    await services.acquire("control-2")
    assert services.spec["holderIdentity"] == "control-2"


async def test_a_holder_without_the_control_plane_label_keeps_it(services: Services) -> None:
    """kubeadm labels the Node last, after its etcd member was added."""
    await services.acquire("control-1")
    services.node("control-1", control_plane=False)
    with pytest.raises(LeaseHeld):
        await services.acquire("control-2")


async def test_a_node_from_before_the_lease_does_not_free_it(services: Services) -> None:
    services.node("control-1", uid="old")
    await services.acquire("control-1")
    with pytest.raises(LeaseHeld):
        await services.acquire("control-2")
    services.node("control-1", uid="new")
    await services.acquire("control-2")


async def test_a_node_from_a_failed_join_does_not_free_the_renewed_lease(services: Services) -> None:
    """The holder resets and joins again; meanwhile its old Node still has the label."""
    await services.acquire("control-1")
    services.node("control-1")
    await services.acquire("control-1")
    with pytest.raises(LeaseHeld):
        await services.acquire("control-2")


async def test_one_of_many_concurrent_control_planes_acquires_it(services: Services) -> None:
    async def attempt(number: int) -> bool:
        try:
            await services.acquire(f"control-{number}")
        except LeaseHeld:
            return False
        return True

    won = await asyncio.gather(*map(attempt, range(10)))
    assert sum(won) == 1
    assert services.spec["holderIdentity"] == f"control-{won.index(True)}"


async def test_one_of_many_acquires_an_expired_lease(services: Services) -> None:
    """By the resourceVersion, as the object exists."""
    await services.acquire("control-9")
    services.now += 601

    async def attempt(number: int) -> bool:
        try:
            await services.acquire(f"control-{number}")
        except LeaseHeld:
            return False
        return True

    assert sum(await asyncio.gather(*map(attempt, range(8)))) == 1


async def test_repeated_write_conflicts_cause_a_retry(services: Services) -> None:
    services.api.faults.append(failing("POST", "/leases", KubeError(409, "AlreadyExists", "")))
    with pytest.raises(RetryLater, match="write conflict after 4 attempts"):
        await services.acquire("control-1")
