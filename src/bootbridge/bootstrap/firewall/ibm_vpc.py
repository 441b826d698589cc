"""Creates and deletes rules in security groups of a VPC, for IBM Cloud and PowerVS."""

from __future__ import annotations

from typing import Any

from bootbridge.bootstrap.firewall.model import Condition, FirewallAction, Lookup, Presence, bootstrap_name
from bootbridge.bootstrap.plan.plan import Plan

JSON = ("--output", "JSON")
NOT_FOUND = ("not_found",)  # security_group_not_found, security_group_rule_not_found, …
# Without this flag the CLI lists only the resource group that it is targeted at.
_EVERYWHERE = ("--all-resource-groups",)


def target_region(plan: Plan) -> Lookup:
    """Finds the region that the CLI is targeted at, and checks it: no flag of a command selects it."""
    wanted = plan.cloud.region
    return Lookup(
        "region",
        f"the CLI's target region {wanted}".rstrip(),
        ("ibmcloud", "target", *JSON),
        items="",
        select="region.name",
        where=(("region.name", wanted),) if wanted else (),
        if_missing=f"run: ibmcloud target -r {wanted or 'REGION'}",
    )


def group_lookup(
    variable: str, names: tuple[str, ...], presence: Presence = Presence.REQUIRED, select: str = "id"
) -> Lookup:
    argv = ("ibmcloud", "is", "security-groups", *_EVERYWHERE, *JSON)
    description = f"the security group {' or '.join(names)}"
    return Lookup(variable, description, argv, "[]", select, (("name", names),), presence=presence)


def of_instance(plan: Plan, variable: str, select: str) -> Lookup:
    name = bootstrap_name(plan)
    argv = ("ibmcloud", "is", "instances", *_EVERYWHERE, *JSON)
    description = f"the {variable} of the instance {name}"
    return Lookup(variable, description, argv, "[]", select, where=(("name", name),))


def add_rule(
    plan: Plan,
    rule: str,
    group: tuple[str, ...],
    match: tuple[str, str | tuple[str, ...]],
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
        description=f"allow {_text(match[1])} on TCP {port}",
        argv=(*add, "--remote", given, *ports, *JSON),
        api="POST /v1/security_groups/@group@/rules",
        body=body,
        lookups=(target_region(plan), group_lookup("group", group), existing, *lookups),
    )


def delete_rule(
    plan: Plan, rule: str, group: tuple[str, ...], match: tuple[str, str | tuple[str, ...]]
) -> FirewallAction:
    presence = Presence.SKIP_IF_MISSING
    return FirewallAction(
        rule=rule,
        description=f"revoke {_text(match[1])} on TCP {plan.ports.agent}",
        argv=("ibmcloud", "is", "security-group-rule-delete", "@group@", "@rule@", "--force"),
        api="DELETE /v1/security_groups/@group@/rules/@rule@",
        lookups=(
            target_region(plan),
            group_lookup("group", group, presence),
            _rule_lookup(plan, match, presence),
        ),
        already_done=NOT_FOUND,
    )


def _text(names: str | tuple[str, ...]) -> str:
    return names if isinstance(names, str) else " or ".join(names)


def _rule_lookup(plan: Plan, match: tuple[str, str | tuple[str, ...]], presence: Presence) -> Lookup:
    """Finds the rule whose every field equals ours: the group may contain similar rules of others."""
    port = plan.ports.agent
    exactly: tuple[Condition, ...] = (
        ("direction", "inbound"),
        ("protocol", "tcp"),
        ("port_min", port),
        ("port_max", port),
        match,
    )
    argv = ("ibmcloud", "is", "security-group-rules", "@group@", *JSON)
    description = f"the rule for {_text(match[1])} on TCP {port}"
    return Lookup("rule", description, argv, "[]", "id", exactly, presence=presence, not_found=NOT_FOUND)
