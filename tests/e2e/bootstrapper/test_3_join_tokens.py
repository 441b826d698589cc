"""Where a policy accepts tokens, for development: each makes one node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.lab_instances import Instances

pytestmark = pytest.mark.e2e

TOKEN_ID, TOKEN_SECRET = "once", "only-known-to-this-test"
TOKEN = f"{TOKEN_ID}.{TOKEN_SECRET}"
NAMES = ("by-token", "by-token-too")


@pytest.fixture
def tokens_are_accepted(cluster: Instances, spare: str) -> Iterator[None]:
    """And two more instances are listed that have no TPM: they are known by name and address."""
    original, policy = cluster.policy(), cluster.policy()
    policy["evidence"]["token"] = {"tokens": {TOKEN_ID: TOKEN_SECRET}}
    address = str(cluster.node(spare).address)
    policy["instances"] += [{"name": name, "role": "worker", "addresses": [address]} for name in NAMES]
    cluster.change_policy(policy)
    yield
    cluster.change_policy(original)


@pytest.mark.usefixtures("tokens_are_accepted")
def test_a_token_that_has_made_one_node_makes_no_other(cluster: Instances, spare: str) -> None:
    first, second = NAMES
    cluster.until(
        lambda: cluster.trick("token", spare, name=first, token=TOKEN).get("got") == f"a ticket for {first}",
        "the changed policy is in force",
    )
    refused = cluster.trick("token", spare, name=second, token=TOKEN)["refused"]
    assert "already used by" in refused
    cluster.until_audited(second, "already used by")
    assert TOKEN_SECRET not in cluster.join_service_log()
