"""A policy for development accepts join tokens; each is valid for one node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.lab_instances import Instances

pytestmark = pytest.mark.e2e

TOKEN_ID, TOKEN_SECRET = "once", "only-known-to-this-test"
TOKEN = f"{TOKEN_ID}.{TOKEN_SECRET}"
NAMES = ("token-1", "token-2")


@pytest.fixture
def policy_with_a_token(cluster: Instances, spare: str) -> Iterator[None]:
    """Also lists two instances without a TPM, by name and address."""
    original, policy = cluster.policy(), cluster.policy()
    policy["evidence"]["token"] = {"tokens": {TOKEN_ID: TOKEN_SECRET}}
    address = str(cluster.node(spare).address)
    policy["instances"] += [{"name": name, "role": "worker", "addresses": [address]} for name in NAMES]
    cluster.change_policy(policy)
    yield
    cluster.change_policy(original)


@pytest.mark.usefixtures("policy_with_a_token")
def test_a_token_is_valid_for_one_node(cluster: Instances, spare: str) -> None:
    first, second = NAMES
    cluster.until(
        lambda: cluster.attack("token", spare, name=first, token=TOKEN).get("ticket") == first,
        "the changed policy is in force",
    )
    refused = cluster.attack("token", spare, name=second, token=TOKEN)["refused"]
    assert "already used by" in refused
    cluster.until_audited(second, "already used by")
    assert TOKEN_SECRET not in cluster.join_service_log()
