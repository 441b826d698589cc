"""A valid join policy with the verifiers and the inventory that it configures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bootbridge.join_api.policy import JoinPolicy, parse_policy
from bootbridge.join_service.inventory import Inventory, MetadataInventory, StaticInventory
from bootbridge.metadata.configuration import metadata_from
from bootbridge.runtime import logs
from bootbridge.trust.evidence import Verifier


@dataclass(frozen=True)
class ActivePolicy:
    policy: JoinPolicy
    verifiers: tuple[Verifier, ...]
    inventory: Inventory

    @classmethod
    def load(
        cls, text: str, subject: str, clock: Callable[[], float], previous: ActivePolicy | None = None
    ) -> ActivePolicy:
        """Raises OperatorError. An inventory with unchanged settings is reused from `previous`."""
        policy = parse_policy(text, subject)
        if previous is not None and policy.inventory and policy.inventory == previous.policy.inventory:
            inventory = previous.inventory
        else:
            inventory = _inventory(policy, f"{subject}: inventory", clock)
        evidence = policy.evidence.verifiers(f"{subject}: evidence.", is_enrolled=inventory.has_identity)
        return cls(policy, evidence, inventory)


def _inventory(policy: JoinPolicy, subject: str, clock: Callable[[], float]) -> Inventory:
    if policy.inventory is None:
        return StaticInventory(policy.instances)
    http = policy.inventory.http
    if http and http.url.lower().startswith("http:"):
        # An attacker on the path could change who may become a control plane.
        logs.event("join-service", logs.WARNING, "inventory over unencrypted http", policy=subject)
    return MetadataInventory(metadata_from(policy.inventory, subject), clock)
