"""A policy that works: its document, and the verifiers and the inventory that it describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bootbridge.join_api.policy import JoinPolicy, parse_policy
from bootbridge.join_api.policy_check import reject_dns_inventory
from bootbridge.join_service.inventory import Inventory, MetadataInventory, StaticInventory
from bootbridge.metadata.configuration import metadata_from
from bootbridge.runtime import logs
from bootbridge.trust.evidence import Verifier
from bootbridge.trust.evidence.configuration import verifiers_from


@dataclass(frozen=True)
class ActivePolicy:
    policy: JoinPolicy
    verifiers: tuple[Verifier, ...]
    inventory: Inventory

    @classmethod
    def of(
        cls, text: str, subject: str, clock: Callable[[], float], before: ActivePolicy | None = None
    ) -> ActivePolicy:
        """Raises OperatorError for whatever is wrong with it.

        An inventory that is described as it was `before` is that one, with all that it knows.
        """
        policy = parse_policy(text, subject)
        if before is not None and policy.inventory and policy.inventory == before.policy.inventory:
            inventory = before.inventory
        else:
            inventory = _inventory(policy, f"{subject}: inventory", clock)
        evidence = verifiers_from(policy.evidence, f"{subject}: evidence", is_enrolled=inventory.knows)
        return cls(policy, evidence, inventory)


def _inventory(policy: JoinPolicy, subject: str, clock: Callable[[], float]) -> Inventory:
    if policy.instances:
        return StaticInventory(policy.instances)
    reject_dns_inventory(policy, subject)
    settings = policy.inventory.get("http")
    if isinstance(settings, Mapping) and str(settings.get("url", "")).lower().startswith("http:"):
        text = "the inventory comes over plain http: whoever is on the way decides who may be a control plane"
        logs.event("join-service", logs.WARNING, text, policy=subject)
    return MetadataInventory(metadata_from(policy.inventory, subject), clock)
