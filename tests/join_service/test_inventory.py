"""Who is calling: by the key of its evidence, else by name and address, and by nothing less."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from ipaddress import ip_address

import pytest

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.join_api.errors import JoinRefused, RetryLater
from bootbridge.join_api.instance import Instance
from bootbridge.join_service.inventory import (
    SNAPSHOT_SECONDS_MAX,
    InventorySnapshot,
    MetadataInventory,
    StaticInventory,
    source_address,
)
from bootbridge.trust.evidence import AttestedPeer
from tests.join_service.environment import INSTANCES, UNENROLLED, WORKER, identity

LISTED = InventorySnapshot.of(INSTANCES)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("10.0.0.5:4711", "10.0.0.5"),
        ("fd00::5", "fd00::5"),
        ("[fd00::5]:4711", "fd00::5"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_an_address_is_read_however_it_is_written(text: str, address: str) -> None:
    assert source_address(text) == ip_address(address)


@pytest.mark.parametrize("text", ["", "somewhere", "[", "/run/socket"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert source_address(text) is None


class TestCaller:
    def test_is_recognised_by_its_key_wherever_it_calls_from(self) -> None:
        """Behind a NAT the address is not its own; the key is."""
        assert LISTED.caller(AttestedPeer("tpm", WORKER.identity), "anything", "192.0.2.1") is WORKER

    def test_without_a_listed_key_is_recognised_by_name_and_address(self) -> None:
        assert LISTED.caller(AttestedPeer("token"), "worker-1", "10.0.0.6") is UNENROLLED
        assert LISTED.caller(AttestedPeer("tpm", identity("f")), "worker-1", "::ffff:10.0.0.6") is UNENROLLED

    @pytest.mark.parametrize("address", ["10.0.0.7", "", "unknown"])
    def test_from_elsewhere_is_refused_with_both_addresses(self, address: str) -> None:
        with pytest.raises(JoinRefused, match=r"listed at 10\.0\.0\.6.*comes from"):
            LISTED.caller(AttestedPeer("token"), "worker-1", address)

    @pytest.mark.parametrize("shown", ["", identity("f")])
    def test_with_another_key_than_the_listed_one_is_refused_at_the_right_address(self, shown: str) -> None:
        with pytest.raises(JoinRefused, match="listed with another key"):
            LISTED.caller(AttestedPeer("x509", shown), "worker-0", "10.0.0.5")

    def test_that_nobody_lists_is_refused(self) -> None:
        with pytest.raises(JoinRefused, match="no instance is named 'stranger'"):
            LISTED.caller(AttestedPeer("x509", identity("f")), "stranger", "10.0.0.9")

    def test_whose_key_two_instances_share_is_not_recognised_by_it(self) -> None:
        twin = replace(UNENROLLED, identity=WORKER.identity)
        with pytest.raises(JoinRefused):
            InventorySnapshot.of((WORKER, twin)).caller(
                AttestedPeer("tpm", WORKER.identity), "worker-0", "10.0.0.5"
            )

    def test_whose_name_two_instances_share_is_not_recognised_by_it(self) -> None:
        """Names are told apart as Kubernetes does: `worker_1` and `worker-1` are one."""
        twin = replace(UNENROLLED, addresses=(ip_address("10.0.0.66"),))
        for instances in ((UNENROLLED, twin), (twin, UNENROLLED)):
            with pytest.raises(JoinRefused, match="no instance is named 'worker-1'"):
                InventorySnapshot.of(instances).caller(AttestedPeer("token"), "worker-1", "10.0.0.66")


class Infrastructure:
    """A metadata service that can be counted on, or not."""

    def __init__(self) -> None:
        self.asked = 0
        self.instances: tuple[Instance, ...] = (WORKER,)
        self.away = False
        self.answering = asyncio.Event()
        self.answering.set()

    async def peers(self) -> tuple[Instance, ...]:
        self.asked += 1
        await self.answering.wait()
        if self.away:
            raise MetadataUnavailable("no route")
        return self.instances


class TestMetadataInventory:
    def setup_method(self) -> None:
        self.now = 0.0
        self.infrastructure = Infrastructure()
        self.inventory = MetadataInventory(self.infrastructure, lambda: self.now)  # type: ignore[arg-type]

    async def test_a_thousand_callers_are_one_question(self) -> None:
        self.infrastructure.answering.clear()
        callers = [asyncio.ensure_future(self.inventory.listed()) for _ in range(1000)]
        await asyncio.sleep(0)
        self.infrastructure.answering.set()
        assert all("worker-0" in listed.by_name for listed in await asyncio.gather(*callers))
        assert self.infrastructure.asked == 1

    async def test_a_new_instance_is_known_soon(self) -> None:
        await self.inventory.listed()
        self.infrastructure.instances = INSTANCES
        assert not self.inventory.knows(identity("b"))
        self.now += SNAPSHOT_SECONDS_MAX
        await self.inventory.listed()
        assert self.inventory.knows(identity("b"))

    async def test_while_the_infrastructure_is_away_nobody_is_refused_for_it(self) -> None:
        self.infrastructure.away = True
        with pytest.raises(RetryLater, match="the inventory cannot be read: no route"):
            await self.inventory.listed()
        self.infrastructure.away = False
        assert "worker-0" in (await self.inventory.listed()).by_name


async def test_a_fixed_inventory_knows_the_enrolled_keys() -> None:
    inventory = StaticInventory(INSTANCES)
    assert inventory.knows(WORKER.identity)
    assert not inventory.knows("")
