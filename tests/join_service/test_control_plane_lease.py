"""One control plane joins at a time, and nobody has to clean up after one that failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bootbridge.join_api.errors import RetryLater
from bootbridge.join_service.control_plane_lease import LEASE_NAME, ControlPlaneLease, LeaseHeld
from bootbridge.kube.errors import KubeError
from bootbridge.kube.leases import format_time
from tests.join_service.environment import NAMESPACE, NOW
from tests.join_service.memory_api import MemoryApi, failing

PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE_NAME}"


class Moment:
    """An API server, and two join services that look at it."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.now = NOW
        self.one, self.other = self.service(), self.service()

    def service(self, *, ahead: float = 0.0) -> ControlPlaneLease:
        """One that was just started, whose clock may go wrong."""
        return ControlPlaneLease(
            self.api,  # type: ignore[arg-type]
            NAMESPACE,
            lambda: self.now + ahead,
            lambda: self.now,
        )

    async def take(self, node: str) -> None:
        await self.one.take(node, 600)

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.api.objects[PATH]["spec"])

    def node(self, name: str, *, uid: str = "new", control_plane: bool = True) -> None:
        labels = {"node-role.kubernetes.io/control-plane": ""} if control_plane else {}
        self.api.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name, "labels": labels, "uid": uid}})


@pytest.fixture
def moment() -> Moment:
    return Moment()


async def test_the_lease_says_who_is_joining_and_until_when(moment: Moment) -> None:
    await moment.take("control-1")
    assert moment.spec == {
        "holderIdentity": "control-1",
        "leaseDurationSeconds": 600,
        "acquireTime": format_time(NOW),
        "renewTime": format_time(NOW),
    }


async def test_a_second_control_plane_waits_and_is_told_for_whom_and_how_long(moment: Moment) -> None:
    await moment.take("control-1")
    with pytest.raises(LeaseHeld, match="control-1 is joining as a control plane, until 08:10:00Z") as held:
        await moment.take("control-2")
    assert (held.value.holder, held.value.until) == ("control-1", NOW + 600)


async def test_the_holder_may_come_again_and_has_its_time_anew(moment: Moment) -> None:
    await moment.take("control-1")
    moment.now += 100
    await moment.take("control-1")
    assert moment.spec["renewTime"] == format_time(NOW + 100)
    assert moment.spec["acquireTime"] == format_time(NOW)


async def test_a_holder_that_comes_again_and_again_does_not_keep_the_others_out_for_ever(
    moment: Moment,
) -> None:
    """It reboots, say, before it has become anything, and asks for another ticket each time."""
    while moment.now <= NOW + 2 * 600:
        await moment.take("control-1")
        with pytest.raises(LeaseHeld) as held:
            await moment.take("control-2")
        assert held.value.until <= NOW + 3 * 600
        moment.now += 300
    with pytest.raises(RetryLater, match=r"control-1 has had its turns, .* from 08:30:00Z on"):
        await moment.take("control-1")
    moment.now = NOW + 3 * 600
    await moment.take("control-2")
    with pytest.raises(LeaseHeld, match="control-2 is joining"):
        await moment.take("control-1")


async def test_each_turn_is_a_whole_one(moment: Moment) -> None:
    """Nobody else is let in while a turn lasts that was given, the last of a row not excepted."""
    await moment.take("control-1")
    moment.now += 2 * 600 - 1
    await moment.take("control-1")
    moment.now += 599
    with pytest.raises(LeaseHeld):
        await moment.take("control-2")
    moment.now += 1
    await moment.take("control-2")


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
async def test_a_lease_lasts_as_long_as_another_service_has_seen_it_whatever_its_clock_says(
    moment: Moment, ahead: float
) -> None:
    """It may have been renewed a moment before it was seen first: too late is safe, too early is not."""
    other = moment.service(ahead=ahead)
    await moment.take("control-1")
    moment.now += 100
    with pytest.raises(LeaseHeld):
        await other.take("control-2", 600)
    moment.now += 599
    with pytest.raises(LeaseHeld):
        await other.take("control-2", 600)
    moment.now += 1
    await other.take("control-2", 600)


async def test_a_lease_that_was_renewed_is_another_one(moment: Moment) -> None:
    await moment.take("control-1")
    with pytest.raises(LeaseHeld):
        await moment.other.take("control-2", 600)
    moment.now += 599
    await moment.take("control-1")
    moment.now += 1
    with pytest.raises(LeaseHeld):
        await moment.other.take("control-2", 600)


async def test_a_former_holder_need_not_wait_for_itself(moment: Moment) -> None:
    """A day later, and whether or not the service has been started anew since."""
    await moment.take("control-1")
    moment.now += 86_400
    await moment.service().take("control-1", 600)
    assert moment.spec["acquireTime"] == format_time(NOW + 86_400)


async def test_an_expired_lease_is_free(moment: Moment) -> None:
    await moment.take("control-1")
    moment.now += 600
    await moment.take("control-2")
    assert moment.spec["holderIdentity"] == "control-2"
    assert moment.spec["acquireTime"] == format_time(NOW + 600)


async def test_a_holder_that_has_become_a_control_plane_lets_the_next_one_in_at_once(moment: Moment) -> None:
    await moment.take("control-1")
    moment.node("control-1")
    await moment.take("control-2")
    assert moment.spec["holderIdentity"] == "control-2"


async def test_a_holder_that_is_not_a_control_plane_yet_keeps_it(moment: Moment) -> None:
    """kubeadm labels the Node last, when its etcd member is in."""
    await moment.take("control-1")
    moment.node("control-1", control_plane=False)
    with pytest.raises(LeaseHeld):
        await moment.take("control-2")


async def test_a_node_left_over_from_the_holders_former_life_says_nothing(moment: Moment) -> None:
    moment.node("control-1", uid="old")
    await moment.take("control-1")
    with pytest.raises(LeaseHeld):
        await moment.take("control-2")
    moment.node("control-1", uid="new")
    await moment.take("control-2")


async def test_a_node_that_its_holder_left_half_made_is_old_when_it_comes_again(moment: Moment) -> None:
    """It resets what it was, and joins anew: meanwhile its Node is still there, with its label."""
    await moment.take("control-1")
    moment.node("control-1")
    await moment.take("control-1")
    with pytest.raises(LeaseHeld):
        await moment.take("control-2")


async def test_of_many_at_once_one_wins(moment: Moment) -> None:
    async def attempt(number: int) -> bool:
        try:
            await moment.take(f"control-{number}")
        except LeaseHeld:
            return False
        return True

    won = await asyncio.gather(*map(attempt, range(10)))
    assert sum(won) == 1
    assert moment.spec["holderIdentity"] == f"control-{won.index(True)}"


async def test_of_many_at_an_expired_lease_one_wins(moment: Moment) -> None:
    """Here nobody creates: the version decides."""
    await moment.take("control-9")
    moment.now += 601

    async def attempt(number: int) -> bool:
        try:
            await moment.take(f"control-{number}")
        except LeaseHeld:
            return False
        return True

    assert sum(await asyncio.gather(*map(attempt, range(8)))) == 1


async def test_a_lease_that_others_keep_writing_means_try_again(moment: Moment) -> None:
    moment.api.faults.append(failing("POST", "/leases", KubeError(409, "AlreadyExists", "")))
    with pytest.raises(RetryLater, match="much wanted"):
        await moment.take("control-1")
