"""Selects the module of each cloud. On every other platform the operator manages the firewall."""

from __future__ import annotations

from typing import Protocol

from bootbridge.bootstrap.firewall import aws, azure, gcp, ibmcloud, manual_instructions, openstack, powervs
from bootbridge.bootstrap.firewall.installer_names import control_plane_names
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
    return not unmanaged_reason(plan)


def unmanaged_reason(plan: Plan) -> str:
    """Returns why the operator manages the firewall; empty: Bootbridge does."""
    if plan.user_provisioned:
        return "--user-provisioned"
    if plan.platform not in _PROVIDERS:
        return "neither the installer nor Bootbridge creates rules there"
    if plan.cloud.firewall_owner:
        return f"install-config has {plan.cloud.firewall_owner}"
    if plan.platform is Platform.POWERVS and not control_plane_names(plan):
        return f"the installer of {plan.cloud.release} creates no security group that Bootbridge could use"
    return ""


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
