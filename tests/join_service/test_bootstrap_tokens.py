"""Bootstrap tokens in the form that kubeadm and the API server expect."""

from __future__ import annotations

import base64
import re

import pytest

from bootbridge.join_api.errors import RetryLater
from bootbridge.join_service import bootstrap_tokens
from bootbridge.join_service.bootstrap_tokens import BootstrapToken
from bootbridge.kube.errors import KubeError
from tests.support.fake_api_objects import MemoryApi, failing

SECRETS = "/api/v1/namespaces/kube-system/secrets"


async def created(api: MemoryApi) -> BootstrapToken:
    return await bootstrap_tokens.create(api, "worker-0", 1_800_000_000.5, 900)  # type: ignore[arg-type]


async def test_a_token_is_stored_as_a_bootstrap_token_secret() -> None:
    api = MemoryApi()
    token = await created(api)
    assert re.fullmatch(r"[a-z0-9]{6}\.[a-z0-9]{16}", token.text)
    secret = api.read(f"{SECRETS}/bootstrap-token-{token.id}")
    assert secret["type"] == "bootstrap.kubernetes.io/token"
    assert {name: base64.b64decode(value).decode() for name, value in secret["data"].items()} == {
        "token-id": token.id,
        "token-secret": token.secret,
        "description": "Bootbridge join ticket of worker-0",
        "expiration": "2027-01-15T08:15:00Z",
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token,"
        "system:bootstrappers:bootbridge:node:worker-0",
    }
    assert token.expires == 1_800_000_900


@pytest.mark.parametrize("node", ["worker-0", "a", "10-0-0-5.zone-a.example.com"])
def test_a_node_name_survives_the_round_trip_through_a_valid_group(node: str) -> None:
    group = bootstrap_tokens.node_group(node)
    assert re.fullmatch(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]", group)
    assert bootstrap_tokens.node_from_groups([bootstrap_tokens.GROUP, group, "system:authenticated"]) == node


@pytest.mark.parametrize(
    "groups",
    [[], [bootstrap_tokens.GROUP], [bootstrap_tokens.node_group("a"), bootstrap_tokens.node_group("b")]],
)
def test_no_group_or_several_give_no_node(groups: list[str]) -> None:
    assert bootstrap_tokens.node_from_groups(groups) == ""


async def test_tokens_are_unique() -> None:
    api = MemoryApi()
    assert len({(await created(api)).text for _ in range(100)}) == 100


async def test_the_secret_is_not_in_str_and_repr() -> None:
    token = await created(MemoryApi())
    assert token.secret not in f"{token} {token!r}"


async def test_a_colliding_id_is_generated_again() -> None:
    api = MemoryApi()
    refusals = iter([KubeError(409, "AlreadyExists", "taken")])

    def taken_once(request: object) -> None:
        for refusal in refusals:
            raise refusal

    api.faults.append(taken_once)
    token = await created(api)
    first, second = (str((request.body or {})["metadata"]["name"]) for request in api.calls)
    assert first != second == f"bootstrap-token-{token.id}"


async def test_repeated_collisions_cause_a_retry() -> None:
    api = MemoryApi()
    api.faults.append(failing("POST", "/secrets", KubeError(409, "AlreadyExists", "taken")))
    with pytest.raises(RetryLater):
        await created(api)


async def test_other_errors_of_the_api_server_are_raised() -> None:
    api = MemoryApi()
    api.faults.append(failing("POST", "/secrets", KubeError(403, "Forbidden", "no")))
    with pytest.raises(KubeError):
        await created(api)
