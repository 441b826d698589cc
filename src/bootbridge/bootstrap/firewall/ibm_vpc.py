"""Creates and deletes rules in security groups of a VPC, for IBM Cloud and PowerVS."""

from __future__ import annotations

from typing import Any

from bootbridge.bootstrap.firewall.model import FirewallAction, Lookup, Presence, bootstrap_name
from bootbridge.bootstrap.plan.plan import Plan

JSON = ("--output", "JSON")
NOT_FOUND = ("not_found",)  # security_group_not_found, security_group_rule_not_found, …


def group_lookup(variable: str, name: str, presence: Presence = Presence.REQUIRED) -> Lookup:
    argv = ("ibmcloud", "is", "security-groups", *JSON)
    description = f"the security group {name}"
    return Lookup(variable, description, argv, "[]", "id", (("name", name),), presence=presence)


def of_instance(plan: Plan, variable: str, select: str) -> Lookup:
    name = bootstrap_name(plan)
    argv = ("ibmcloud", "is", "instances", *JSON)
    description = f"the {variable} of the instance {name}"
    return Lookup(variable, description, argv, "[]", select, where=(("name", name),))


def add_rule(
    plan: Plan,
    rule: str,
    group: str,
    match: tuple[str, str],
    remote: dict[str, Any],
    lookups: tuple[Lookup, ...] = (),
) -> FirewallAction:
    """Allows `remote`. `match` is the field and the value by which an existing rule is recognised."""
    port = plan.ports.agent
    body = {"direction": "inbound", "protocol": "tcp", "port_min": port, "port_max": port, "remote": remote}
    (given,) = remote.values()
    ports = ("--port-min", str(port), "--port-max", str(port))
    add = ("ibmcloud", "is", "security-group-rule-add", "@group@", "inbound", "tcp")
    existing = _rule_lookup(plan, match, Presence.SKIP_IF_FOUND)
    return FirewallAction(
        rule=rule,
        description=f"allow {match[1]} on TCP {port}",
        argv=(*add, "--remote", given, *ports, *JSON),
        api="POST /v1/security_groups/@group@/rules",
        body=body,
        lookups=(group_lookup("group", group), existing, *lookups),
    )


def delete_rule(plan: Plan, rule: str, group: str, match: tuple[str, str]) -> FirewallAction:
    presence = Presence.SKIP_IF_MISSING
    return FirewallAction(
        rule=rule,
        description=f"revoke {match[1]} on TCP {plan.ports.agent}",
        argv=("ibmcloud", "is", "security-group-rule-delete", "@group@", "@rule@", "--force"),
        api="DELETE /v1/security_groups/@group@/rules/@rule@",
        lookups=(group_lookup("group", group, presence), _rule_lookup(plan, match, presence)),
        already_done=NOT_FOUND,
    )


def _rule_lookup(plan: Plan, match: tuple[str, str], presence: Presence) -> Lookup:
    """Finds the rule whose every field equals ours: the group may contain similar rules of others."""
    port = plan.ports.agent
    exactly: tuple[tuple[str, str | int], ...] = (
        ("direction", "inbound"),
        ("protocol", "tcp"),
        ("port_min", port),
        ("port_max", port),
        match,
    )
    argv = ("ibmcloud", "is", "security-group-rules", "@group@", *JSON)
    description = f"the rule for {match[1]} on TCP {port}"
    return Lookup("rule", description, argv, "[]", "id", exactly, presence=presence, not_found=NOT_FOUND)
