"""What went wrong elsewhere and must not here: one test for each hazard, by its number in our list."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from bootbridge.join_api import messages
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.messages import RejoinRequest, TicketRequest
from bootbridge.runtime.grpc import RpcError
from bootbridge.trust import key_hierarchy
from tests.join_service.environment import (
    CONTROL,
    CONTROL_2,
    NOW,
    WORKER,
    World,
    asking,
    caller,
    csr,
    identity,
)
from tests.kube.conftest import until


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_6_no_key_is_chosen_by_a_string_of_the_callers() -> None:
    """A service that derives keys by name gives away every other key to whoever knows its name."""
    asked = {field.name for kind in (TicketRequest, RejoinRequest) for field in dataclasses.fields(kind)}
    assert asked == {"node_name", "control_plane", "certificate_request"}
    service = Path(messages.__file__).parent / "join_service"
    for module in service.glob("*.py"):
        assert key_hierarchy.state_disk_key.__name__ not in module.read_text()


class Test7NothingIsTakenFromTheCallersWord:
    async def test_a_worker_that_calls_itself_a_control_plane_gets_no_keys(self, world: World) -> None:
        with pytest.raises(RpcError, match="listed as a worker"):
            await world.ticket(caller(WORKER), asking(WORKER, control_plane=True))

    async def test_a_worker_that_calls_itself_another_gets_no_ticket(self, world: World) -> None:
        with pytest.raises(RpcError, match="by its key it is worker-0"):
            await world.ticket(caller(WORKER), replace(asking(CONTROL), control_plane=False))

    async def test_an_address_in_the_certificate_request_is_not_believed(self, world: World) -> None:
        request = csr("worker-0", sans=[x509.IPAddress(ip_address("10.0.0.1"))])
        with pytest.raises(RpcError, match=r"asks for 10\.0\.0\.1"):
            await world.ticket(caller(WORKER), asking(WORKER, certificate_request=request))


async def test_9_a_control_plane_that_has_to_wait_leaks_no_token(world: World) -> None:
    await world.ticket(caller(CONTROL), asking(CONTROL))
    for _ in range(5):
        with pytest.raises(RpcError, match="control-1 is joining"):
            await world.ticket(caller(CONTROL_2), asking(CONTROL_2))
    assert len(world.token_secrets) == 1


async def test_11_a_joining_machine_goes_by_the_addresses_that_the_first_would(world: World) -> None:
    """A machine with two families in a cluster of one: its node-ip does not depend on how it came in."""
    four = replace(world.policy.cluster, service_subnets=("10.96.0.0/12",))
    world.policy = replace(world.policy, cluster=four)
    ticket = await world.ticket(caller(WORKER), asking(WORKER))
    assert {ip_address(each).version for each in ticket.addresses} == {4}
    assert {each.version for each in WORKER.addresses} == {4, 6}


async def test_9_of_two_control_planes_at_two_services_one_gets_a_token(world: World) -> None:
    outcomes = await asyncio.gather(
        world.ticket(caller(CONTROL), asking(CONTROL)),
        world.ticket(caller(CONTROL_2), asking(CONTROL_2), world.another_service()),
        return_exceptions=True,
    )
    assert [isinstance(each, RpcError) for each in outcomes].count(True) == 1
    assert len(world.token_secrets) == 1


async def test_12_a_name_with_dots_is_a_name(world: World) -> None:
    dotted = Instance(
        "worker-7.rack-2.example.com", Role.WORKER, (ip_address("10.0.0.7"),), "", identity("d")
    )
    world.instances = (dotted,)
    assert (await world.ticket(caller(dotted), asking(dotted))).node_name == "worker-7.rack-2.example.com"


async def test_16_a_slow_caller_delays_nobody_else(world: World) -> None:
    """One hangs at the API server, the next has its ticket meanwhile."""
    world.api.answering.clear()
    slow = asyncio.ensure_future(world.ticket(caller(WORKER), asking(WORKER)))
    await until(lambda: world.api.requests)
    # Those who ask from now on are answered; the first still waits for the old event.
    world.api.answering = asyncio.Event()
    world.api.answering.set()
    async with asyncio.timeout(5):
        assert (await world.ticket(caller(CONTROL), asking(CONTROL))).node_name == "control-1"
    assert not slow.done()
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


async def test_19_a_serving_certificate_is_renewed_by_rejoining(world: World) -> None:
    first = await world.ticket(caller(WORKER), asking(WORKER))
    world.now += timedelta(hours=12).total_seconds()
    again = await world.rejoin(caller(WORKER), RejoinRequest("worker-0", csr("worker-0")))
    old, new = (x509.load_pem_x509_certificate(each.kubelet_certificate) for each in (first, again))
    began = datetime.fromtimestamp(NOW, UTC)
    assert new.not_valid_before_utc - old.not_valid_before_utc == timedelta(hours=12)
    assert new.not_valid_after_utc > old.not_valid_after_utc > began
