"""Checks a join policy on the instance that starts an init, before the cluster exists."""

from __future__ import annotations

from bootbridge.errors import OperatorError
from bootbridge.join_api.policy import ClusterFacts, JoinPolicy, parse_policy, with_cluster
from bootbridge.trust.evidence.configuration import verifiers_from


def check_policy(text: str | bytes, subject: str = "join policy") -> None:
    """Whether a user's document, which says nothing about the cluster yet, will do; raises OperatorError.

    What an inventory's settings name lies where the join service will run, and is not looked for here.
    """
    policy = parse_policy(with_cluster(text, ClusterFacts("v0.0.0", "host:6443"), subject), subject)
    verifiers_from(policy.evidence, f"{subject}: evidence", is_enrolled=lambda identity: False)
    reject_dns_inventory(policy, f"{subject}: inventory")


def reject_dns_inventory(policy: JoinPolicy, subject: str) -> None:
    """To find join services by DNS is one thing: whoever answers there still has to prove itself."""
    if "dns" in policy.inventory:
        raise OperatorError(
            "whoever answers for a name in DNS would choose the control planes",
            subject=subject,
            hint="list the instances, or name an http or static inventory",
        )
