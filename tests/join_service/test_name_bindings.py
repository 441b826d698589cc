"""A name belongs to the key that used it first, a token to the node that used it first."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bootbridge.join_api.errors import JoinRefused, RetryLater
from bootbridge.join_api.instance import Role
from bootbridge.join_service.authorization import Grant
from bootbridge.join_service.name_bindings import NameBindings, node_binding_name, token_binding_name
from bootbridge.kube.errors import KubeError
from tests.join_service.environment import NAMESPACE, WORKER, identity
from tests.join_service.memory_api import MemoryApi, failing

CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
GRANT = Grant(WORKER, "worker-0", Role.WORKER, identity("a"))
OTHER = replace(GRANT, holder=identity("f"))


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
def bindings(api: MemoryApi) -> NameBindings:
    return NameBindings(api, NAMESPACE)  # type: ignore[arg-type]


async def test_the_first_key_takes_the_name_for_good(api: MemoryApi, bindings: NameBindings) -> None:
    await bindings.bind(GRANT)
    bond = api.objects[f"{CONFIG_MAPS}/bootbridge-node-worker-0"]
    assert bond["data"] == {"identity": identity("a")}
    assert bond["immutable"]


async def test_the_same_key_may_come_again(bindings: NameBindings) -> None:
    await bindings.bind(GRANT)
    await bindings.bind(GRANT)


async def test_another_key_is_refused_and_told_how_an_operator_frees_the_name(
    api: MemoryApi, bindings: NameBindings
) -> None:
    await bindings.bind(GRANT)
    with pytest.raises(JoinRefused, match=r"bound to sha256:aaaa.*delete configmap bootbridge-node-worker-0"):
        await bindings.bind(OTHER)
    api.remove(f"{CONFIG_MAPS}/bootbridge-node-worker-0")
    await bindings.bind(OTHER)


async def test_of_many_keys_at_once_one_wins(api: MemoryApi) -> None:
    """Through services that know nothing of one another."""

    async def attempt(number: int) -> bool:
        try:
            await NameBindings(api, NAMESPACE).bind(replace(GRANT, holder=f"key {number}"))  # type: ignore[arg-type]
        except JoinRefused:
            return False
        return True

    assert sum(await asyncio.gather(*map(attempt, range(20)))) == 1


async def test_a_bond_freed_at_that_very_moment_means_try_again(
    api: MemoryApi, bindings: NameBindings
) -> None:
    api.faults.append(failing("POST", "/configmaps", KubeError(409, "AlreadyExists", "")))
    with pytest.raises(RetryLater):
        await bindings.bind(GRANT)


async def test_a_bond_without_its_key_binds_to_nobody(api: MemoryApi, bindings: NameBindings) -> None:
    api.put(f"{CONFIG_MAPS}/bootbridge-node-worker-0", {"metadata": {"name": "bootbridge-node-worker-0"}})
    with pytest.raises(JoinRefused):
        await bindings.bind(GRANT)


class TestTokens:
    async def test_a_token_is_used_up_by_the_first_node(self, bindings: NameBindings) -> None:
        await bindings.bind(replace(GRANT, holder="token:alpha"), "alpha")
        stranger = replace(GRANT, name="worker-9", holder="token:alpha")
        with pytest.raises(JoinRefused, match="'alpha' is used up: worker-0 joined with it"):
            await bindings.bind(stranger, "alpha")

    async def test_a_refused_token_takes_no_name(self, api: MemoryApi, bindings: NameBindings) -> None:
        """Otherwise a used-up token could keep the rightful node out."""
        await bindings.bind(replace(GRANT, holder="token:alpha"), "alpha")
        with pytest.raises(JoinRefused):
            await bindings.bind(replace(GRANT, name="worker-9", holder="token:alpha"), "alpha")
        assert f"{CONFIG_MAPS}/bootbridge-node-worker-9" not in api.objects

    async def test_the_node_itself_may_use_its_token_again(self, bindings: NameBindings) -> None:
        await bindings.bind(replace(GRANT, holder="token:alpha"), "alpha")
        await bindings.bind(replace(GRANT, holder="token:alpha"), "alpha")

    async def test_a_second_token_does_not_get_the_name(self, bindings: NameBindings) -> None:
        await bindings.bind(replace(GRANT, holder="token:alpha"), "alpha")
        with pytest.raises(JoinRefused, match="bound to token:alpha"):
            await bindings.bind(replace(GRANT, holder="token:beta"), "beta")


def test_every_node_name_has_a_bond_of_its_own_that_kubernetes_can_name() -> None:
    longest = ".".join(["n" * 61] * 4)
    assert node_binding_name("worker.example") == "bootbridge-node-worker.example"
    assert len(node_binding_name(longest)) <= 253
    assert node_binding_name(longest) != node_binding_name(longest[:-1])
    assert token_binding_name("Ü/..").removeprefix("bootbridge-token-").isalnum()
