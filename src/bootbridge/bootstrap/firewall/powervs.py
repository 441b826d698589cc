"""PowerVS: creates rules in the VPC's control plane security group, from the machine networks.

The bootstrap machine is outside the VPC, so no separate group can be attached to its interface. The
installer's group filters what passes through the VPC. The VPC supports IPv4 only.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.ibm_vpc import add_rule, delete_rule
from bootbridge.bootstrap.firewall.installer_names import control_plane_names
from bootbridge.bootstrap.firewall.model import FirewallAction, Rule, rule_name, source_networks
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.errors import OperatorError


def rules(plan: Plan) -> list[Rule]:
    target = f"security group {' or '.join(control_plane_names(plan))}"
    sources = _networks(plan)
    return [Rule(rule_name(plan), plan.ports.agent, sources, target, "these rules deleted, no others")]


def create(plan: Plan) -> list[FirewallAction]:
    return [
        add_rule(
            plan,
            rule_name(plan),
            control_plane_names(plan),
            ("remote.cidr_block", network),
            {"cidr_block": network},
        )
        for network in _networks(plan)
    ]


def remove(plan: Plan) -> list[FirewallAction]:
    return [
        delete_rule(plan, rule_name(plan), control_plane_names(plan), ("remote.cidr_block", network))
        for network in _networks(plan)
    ]


def _networks(plan: Plan) -> tuple[str, ...]:
    networks = source_networks(plan)
    for network in networks:
        if network.version == 6:
            hint = "give IPv4 networks, or --user-provisioned if you manage the firewall"
            text = f"IPv6 is not supported by IBM's VPC: {network}"
            raise OperatorError(text, subject="networking.machineNetwork", hint=hint)
    return tuple(map(str, networks))
