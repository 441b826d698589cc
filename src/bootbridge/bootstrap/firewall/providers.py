"""Selects the module of each cloud. On every other platform the operator manages the firewall."""

from __future__ import annotations

from typing import Protocol

from bootbridge.bootstrap.firewall import aws, azure, gcp, ibmcloud, manual_instructions, openstack, powervs
from bootbridge.bootstrap.firewall.model import FirewallAction, Rule, source_networks
from bootbridge.bootstrap.plan.plan import Plan, Platform


class _Provider(Protocol):
    def rules(self, plan: Plan) -> list[Rule]: ...

    def create(self, plan: Plan) -> list[FirewallAction]: ...

    def remove(self, plan: Plan) -> list[FirewallAction]: ...


_PROVIDERS: dict[Platform, _Provider] = {
    Platform.AWS: aws,
    Platform.AZURE: azure,
    Platform.GCP: gcp,
    Platform.IBMCLOUD: ibmcloud,
    Platform.OPENSTACK: openstack,
    Platform.POWERVS: powervs,
}
MANAGED = tuple(_PROVIDERS)


def is_managed(plan: Plan) -> bool:
    """Returns whether Bootbridge creates and removes the rules."""
    return plan.platform in _PROVIDERS and not plan.user_provisioned


def rules(plan: Plan) -> list[Rule]:
    """Returns what is opened, also where the operator does it."""
    return _provider(plan).rules(plan) if is_managed(plan) else manual_instructions.rules(plan)


def create(plan: Plan) -> list[FirewallAction]:
    """Returns the actions that open the port, in order; none where the operator does it."""
    return _provider(plan).create(plan) if is_managed(plan) else []


def remove(plan: Plan) -> list[FirewallAction]:
    """Returns the actions that close the port and remove everything that `create` created, in order."""
    return _provider(plan).remove(plan) if is_managed(plan) else []


def _provider(plan: Plan) -> _Provider:
    # Rejects a plan whose machine networks contain all addresses, also where groups are the source.
    source_networks(plan)
    return _PROVIDERS[plan.platform]
