"""Callers are identified by their evidence's key, or by name and address."""

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

INVENTORY = InventorySnapshot.of(INSTANCES)


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
def test_every_form_of_an_address_is_parsed(text: str, address: str) -> None:
    assert source_address(text) == ip_address(address)


@pytest.mark.parametrize("text", ["", "somewhere", "[", "/run/socket"])
def test_an_invalid_address_is_none(text: str) -> None:
    assert source_address(text) is None


class TestFindCaller:
    def test_by_key_from_any_address(self) -> None:
        """Behind a NAT only the key identifies it."""
        assert INVENTORY.find_caller(AttestedPeer("tpm", WORKER.identity), "anything", "192.0.2.1") is WORKER

    def test_by_name_and_address_if_the_inventory_has_no_key(self) -> None:
        assert INVENTORY.find_caller(AttestedPeer("token"), "worker-1", "10.0.0.6") is UNENROLLED
        assert (
            INVENTORY.find_caller(AttestedPeer("tpm", identity("f")), "worker-1", "::ffff:10.0.0.6")
            is UNENROLLED
        )

    @pytest.mark.parametrize("address", ["10.0.0.7", "", "unknown"])
    def test_another_address_is_refused(self, address: str) -> None:
        with pytest.raises(
            JoinRefused, match=r"call from address .* the inventory's addresses are: 10\.0\.0\.6"
        ):
            INVENTORY.find_caller(AttestedPeer("token"), "worker-1", address)

    @pytest.mark.parametrize("shown", ["", identity("f")])
    def test_another_key_is_refused_even_from_the_right_address(self, shown: str) -> None:
        with pytest.raises(JoinRefused, match="the inventory has another key"):
            INVENTORY.find_caller(AttestedPeer("x509", shown), "worker-0", "10.0.0.5")

    def test_an_unlisted_name_is_refused(self) -> None:
        with pytest.raises(JoinRefused, match="unlisted: not in the inventory"):
            INVENTORY.find_caller(AttestedPeer("x509", identity("f")), "unlisted", "10.0.0.9")

    def test_a_key_shared_by_two_instances_identifies_neither(self) -> None:
        twin = replace(UNENROLLED, identity=WORKER.identity)
        with pytest.raises(JoinRefused):
            InventorySnapshot.of((WORKER, twin)).find_caller(
                AttestedPeer("tpm", WORKER.identity), "worker-0", "10.0.0.5"
            )

    def test_a_name_shared_by_two_instances_identifies_neither(self) -> None:
        """Names are compared as node names: `worker_1` and `worker-1` are equal."""
        twin = replace(UNENROLLED, addresses=(ip_address("10.0.0.66"),))
        for instances in ((UNENROLLED, twin), (twin, UNENROLLED)):
            with pytest.raises(JoinRefused, match="worker-1: not in the inventory"):
                InventorySnapshot.of(instances).find_caller(AttestedPeer("token"), "worker-1", "10.0.0.66")


class FakeMetadata:
    def __init__(self) -> None:
        self.requests = 0
        self.instances: tuple[Instance, ...] = (WORKER,)
        self.unavailable = False
        self.answering = asyncio.Event()
        self.answering.set()

    async def peers(self) -> tuple[Instance, ...]:
        self.requests += 1
        await self.answering.wait()
        if self.unavailable:
            raise MetadataUnavailable("no route")
        return self.instances


class TestMetadataInventory:
    def setup_method(self) -> None:
        self.now = 0.0
        self.metadata = FakeMetadata()
        self.inventory = MetadataInventory(self.metadata, lambda: self.now)  # type: ignore[arg-type]

    async def test_concurrent_callers_share_one_request(self) -> None:
        self.metadata.answering.clear()
        callers = [asyncio.ensure_future(self.inventory.snapshot()) for _ in range(1000)]
        await asyncio.sleep(0)
        self.metadata.answering.set()
        assert all("worker-0" in snapshot.by_name for snapshot in await asyncio.gather(*callers))
        assert self.metadata.requests == 1

    async def test_a_new_instance_is_found_after_the_cache_expires(self) -> None:
        await self.inventory.snapshot()
        self.metadata.instances = INSTANCES
        assert not self.inventory.has_identity(identity("b"))
        self.now += SNAPSHOT_SECONDS_MAX
        await self.inventory.snapshot()
        assert self.inventory.has_identity(identity("b"))

    async def test_an_unavailable_metadata_service_causes_a_retry(self) -> None:
        self.metadata.unavailable = True
        with pytest.raises(RetryLater, match="inventory unavailable: no route"):
            await self.inventory.snapshot()
        self.metadata.unavailable = False
        assert "worker-0" in (await self.inventory.snapshot()).by_name


async def test_a_static_inventory_has_its_enrolled_keys() -> None:
    inventory = StaticInventory(INSTANCES)
    assert inventory.has_identity(WORKER.identity)
    assert not inventory.has_identity("")
