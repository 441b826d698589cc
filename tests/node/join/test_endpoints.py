"""The addresses of join services."""

from __future__ import annotations

import asyncio
import logging
from ipaddress import ip_address

import pytest

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.join_api.instance import Instance, Role
from bootbridge.node.join.endpoints import host_of, join_endpoints


def control_plane(name: str, *addresses: str) -> Instance:
    return Instance(name, Role.CONTROL_PLANE, tuple(ip_address(each) for each in addresses))


class FixedMetadata:
    """Metadata with fixed answers; an exception is raised."""

    def __init__(
        self,
        load_balancer: str | Exception,
        peers: tuple[Instance, ...] | Exception,
        myself: Instance | None = None,
    ) -> None:
        self._load_balancer = load_balancer
        self._peers = peers
        self._myself = myself
        self.peers_requested = asyncio.Event()

    async def myself(self) -> Instance:
        assert self._myself is not None, "unexpected call"
        return self._myself

    async def init_secret_hash(self) -> str:
        raise AssertionError("unexpected call")

    async def load_balancer(self) -> str:
        # Both requests are concurrent: the first can wait for the second.
        async with asyncio.timeout(5):
            await self.peers_requested.wait()
        if isinstance(self._load_balancer, Exception):
            raise self._load_balancer
        return self._load_balancer

    async def peers(self) -> tuple[Instance, ...]:
        self.peers_requested.set()
        if isinstance(self._peers, Exception):
            raise self._peers
        return self._peers


UNAVAILABLE = MetadataUnavailable("connection refused")
WORKER = Instance("worker-0", Role.WORKER, (ip_address("10.0.0.9"),))


async def test_the_load_balancer_is_first_then_every_control_plane() -> None:
    metadata = FixedMetadata("lb.example:6443", (control_plane("cp-0", "10.0.0.1", "fd00::1"), WORKER))
    assert await join_endpoints(metadata) == [("lb.example", 30090), ("10.0.0.1", 30090), ("fd00::1", 30090)]


async def test_an_empty_load_balancer_is_never_dialled() -> None:
    """An empty host would be dialled as localhost."""
    assert await join_endpoints(FixedMetadata("", (control_plane("cp-0", "10.0.0.1"),))) == [
        ("10.0.0.1", 30090)
    ]
    assert await join_endpoints(FixedMetadata("", ())) == []


async def test_without_the_load_balancer_the_control_planes_are_still_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        found = await join_endpoints(FixedMetadata(UNAVAILABLE, (control_plane("cp-0", "10.0.0.1"),)))
    assert found == [("10.0.0.1", 30090)]
    assert "metadata source failed" in caplog.text


async def test_without_the_peers_the_load_balancer_is_still_tried() -> None:
    assert await join_endpoints(FixedMetadata("lb.example", UNAVAILABLE)) == [("lb.example", 30090)]


async def test_when_neither_is_known_the_failure_names_both() -> None:
    with pytest.raises(MetadataUnavailable, match="no balancer; no peers"):
        await join_endpoints(
            FixedMetadata(MetadataUnavailable("no balancer"), MetadataUnavailable("no peers"))
        )


async def test_endpoints_are_unique() -> None:
    """The load balancer may be an address of a control plane."""
    metadata = FixedMetadata(
        "10.0.0.1:6443", (control_plane("cp-0", "10.0.0.1"), control_plane("cp-1", "10.0.0.1"))
    )
    assert await join_endpoints(metadata) == [("10.0.0.1", 30090)]


async def test_a_control_plane_may_call_its_own_join_service() -> None:
    """A single control plane has no other join service for a renewal."""
    metadata = FixedMetadata("", (), myself=control_plane("cp-0", "10.0.0.1"))
    assert await join_endpoints(metadata, 4433) == []
    assert await join_endpoints(metadata, 4433, own=True) == [("10.0.0.1", 4433)]
    assert await join_endpoints(FixedMetadata("", (), myself=WORKER), own=True) == []


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("lb.example", "lb.example"),
        ("lb.example:6443", "lb.example"),
        ("10.0.0.1:6443", "10.0.0.1"),
        ("[fd00::1]:6443", "fd00::1"),
        ("[fd00::1]", "fd00::1"),
        ("fd00::1", "fd00::1"),
        ("", ""),
        (":6443", ""),
    ],
)
def test_a_load_balancer_may_be_written_with_or_without_a_port(endpoint: str, host: str) -> None:
    assert host_of(endpoint) == host
