"""Which module speaks for which cloud; every other platform's firewall is the operator's own."""

from __future__ import annotations

from typing import Protocol

from bootbridge.bootstrap.firewall import aws, azure, gcp, ibmcloud, manual_instructions, openstack, powervs
from bootbridge.bootstrap.firewall.model import FirewallAction, Rule, source_networks
from bootbridge.bootstrap.plan.plan import Plan, Platform


class _Cloud(Protocol):
    def rules(self, plan: Plan) -> list[Rule]: ...

    def create(self, plan: Plan) -> list[FirewallAction]: ...

    def remove(self, plan: Plan) -> list[FirewallAction]: ...


_CLOUDS: dict[Platform, _Cloud] = {
    Platform.AWS: aws,
    Platform.AZURE: azure,
    Platform.GCP: gcp,
    Platform.IBMCLOUD: ibmcloud,
    Platform.OPENSTACK: openstack,
    Platform.POWERVS: powervs,
}
MANAGED = tuple(_CLOUDS)


def is_managed(plan: Plan) -> bool:
    """Whether there is a cloud firewall that we can speak to, and that is not the operator's own."""
    return plan.platform in _CLOUDS and not plan.user_provisioned


def rules(plan: Plan) -> list[Rule]:
    """The rules in words: what is opened, for whom, to what; also where it is done by hand."""
    return _cloud(plan).rules(plan) if is_managed(plan) else manual_instructions.rules(plan)


def create(plan: Plan) -> list[FirewallAction]:
    """What opens the port, in order; nothing where it is done by hand."""
    return _cloud(plan).create(plan) if is_managed(plan) else []


def remove(plan: Plan) -> list[FirewallAction]:
    """What closes it again and leaves nothing of ours behind, in order."""
    return _cloud(plan).remove(plan) if is_managed(plan) else []


def _cloud(plan: Plan) -> _Cloud:
    source_networks(
        plan
    )  # a plan whose nodes are the whole world is refused, also where groups are the source
    return _CLOUDS[plan.platform]
