"""A node name is bound to the first key that used it, a token to the first node."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bootbridge.join_api.errors import JoinRefused, RetryLater
from bootbridge.join_api.instance import Role
from bootbridge.join_service.authorization import Grant
from bootbridge.join_service.name_bindings import (
    NameBindings,
    evicted_binding,
    node_binding_name,
    token_binding_name,
)
from bootbridge.kube.errors import KubeError
from bootbridge.kube.kinds import CONFIG_MAP
from bootbridge.kube.objects import Ref
from tests.join_service.environment import NAMESPACE, WORKER, identity
from tests.support.fake_api_objects import MemoryApi, failing

CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
GRANT = Grant(WORKER, "worker-0", Role.WORKER, identity("a"))
OTHER = replace(GRANT, identity=identity("f"))


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
def bindings(api: MemoryApi) -> NameBindings:
    return NameBindings(api, NAMESPACE)  # type: ignore[arg-type]


async def test_the_first_key_is_bound_immutably(api: MemoryApi, bindings: NameBindings) -> None:
    await bindings.bind(GRANT)
    binding = api.read(f"{CONFIG_MAPS}/bootbridge-node-worker-0")
    assert binding["data"] == {"identity": identity("a")}
    assert binding["immutable"]


async def test_binding_the_same_key_again_succeeds(bindings: NameBindings) -> None:
    await bindings.bind(GRANT)
    await bindings.bind(GRANT)


async def test_another_key_is_refused_with_the_command_that_releases_the_name(
    api: MemoryApi, bindings: NameBindings
) -> None:
    await bindings.bind(GRANT)
    with pytest.raises(
        JoinRefused, match=r"bound to x509:sha256:aaaa.*delete configmap bootbridge-node-worker-0"
    ):
        await bindings.bind(OTHER)
    api.remove(f"{CONFIG_MAPS}/bootbridge-node-worker-0")
    await bindings.bind(OTHER)


@pytest.mark.parametrize("grant", [GRANT, OTHER], ids=["its own key", "another key"])
async def test_the_name_of_an_evicted_node_is_refused_with_the_command_that_permits_it(
    api: MemoryApi, bindings: NameBindings, grant: Grant
) -> None:
    """For a ticket and for a rejoin."""
    await bindings.bind(GRANT)
    path = f"{CONFIG_MAPS}/bootbridge-node-worker-0"
    ref = Ref(CONFIG_MAP, "bootbridge-node-worker-0", NAMESPACE)
    api.put(path, evicted_binding(ref, api.read(path)))
    for call in (bindings.bind(grant), bindings.require_node(grant)):
        with pytest.raises(JoinRefused, match=r"node evicted .*bootbridge node evict --undo worker-0"):
            await call


async def test_one_of_many_concurrent_keys_is_bound(api: MemoryApi) -> None:
    """Through independent join services."""

    async def attempt(number: int) -> bool:
        try:
            await NameBindings(api, NAMESPACE).bind(replace(GRANT, identity=f"key {number}"))  # type: ignore[arg-type]
        except JoinRefused:
            return False
        return True

    assert sum(await asyncio.gather(*map(attempt, range(20)))) == 1


async def test_a_binding_that_is_deleted_meanwhile_causes_a_retry(
    api: MemoryApi, bindings: NameBindings
) -> None:
    api.faults.append(failing("POST", "/configmaps", KubeError(409, "AlreadyExists", "")))
    with pytest.raises(RetryLater):
        await bindings.bind(GRANT)


async def test_a_binding_without_identity_matches_no_key(api: MemoryApi, bindings: NameBindings) -> None:
    api.put(f"{CONFIG_MAPS}/bootbridge-node-worker-0", {"metadata": {"name": "bootbridge-node-worker-0"}})
    with pytest.raises(JoinRefused):
        await bindings.bind(GRANT)


class TestTokens:
    async def test_a_token_is_bound_to_its_first_node(self, bindings: NameBindings) -> None:
        await bindings.bind(replace(GRANT, identity="token:alpha"), "alpha")
        other = replace(GRANT, name="worker-9", identity="token:alpha")
        with pytest.raises(JoinRefused, match="'alpha' already used by worker-0"):
            await bindings.bind(other, "alpha")

    async def test_a_refused_token_binds_no_name(self, api: MemoryApi, bindings: NameBindings) -> None:
        """Otherwise a used token could block the rightful node."""
        await bindings.bind(replace(GRANT, identity="token:alpha"), "alpha")
        with pytest.raises(JoinRefused):
            await bindings.bind(replace(GRANT, name="worker-9", identity="token:alpha"), "alpha")
        assert not api.exists(f"{CONFIG_MAPS}/bootbridge-node-worker-9")

    async def test_a_node_may_use_its_token_again(self, bindings: NameBindings) -> None:
        await bindings.bind(replace(GRANT, identity="token:alpha"), "alpha")
        await bindings.bind(replace(GRANT, identity="token:alpha"), "alpha")

    async def test_a_name_is_bound_to_one_token(self, bindings: NameBindings) -> None:
        await bindings.bind(replace(GRANT, identity="token:alpha"), "alpha")
        with pytest.raises(JoinRefused, match="bound to token:alpha"):
            await bindings.bind(replace(GRANT, identity="token:beta"), "beta")


def test_names_of_bindings_are_unique_and_valid() -> None:
    longest = ".".join(["n" * 61] * 4)
    assert node_binding_name("worker.example") == "bootbridge-node-worker.example"
    assert len(node_binding_name(longest)) <= 253
    assert node_binding_name(longest) != node_binding_name(longest[:-1])
    assert token_binding_name("Ü/..").removeprefix("bootbridge-token-").isalnum()


async def test_a_binding_of_an_earlier_version_is_reported_with_the_command_that_releases_it(
    api: MemoryApi, bindings: NameBindings
) -> None:
    """It names a key without the kind of evidence, so it cannot be compared."""
    old = replace(GRANT, identity=GRANT.identity.partition(":")[2])
    await bindings.bind(old)
    command = "kubectl -n kube-system delete configmap bootbridge-node-worker-0"
    with pytest.raises(JoinRefused, match=rf"by an earlier version without a kind; .*{command}"):
        await bindings.bind(GRANT)
    with pytest.raises(JoinRefused, match=command):
        await bindings.require_node(GRANT)
