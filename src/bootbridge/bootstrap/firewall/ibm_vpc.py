"""What IBM Cloud and PowerVS share: rules in security groups of a VPC."""

from __future__ import annotations

from typing import Any

from bootbridge.bootstrap.firewall.model import FirewallAction, Lookup, Then, bootstrap_name
from bootbridge.bootstrap.plan.plan import Plan

JSON = ("--output", "JSON")
GONE = ("not_found",)  # security_group_not_found, security_group_rule_not_found, …


def group_lookup(variable: str, name: str, *, none: Then = Then.FAIL, some: Then = Then.GO_ON) -> Lookup:
    argv = ("ibmcloud", "is", "security-groups", *JSON)
    where = (("name", name),)
    seeks = f"the security group {name}"
    return Lookup(variable, seeks, argv, "[]", "id", where, none=none, some=some)


def of_instance(plan: Plan, variable: str, give: str) -> Lookup:
    name = bootstrap_name(plan)
    argv = ("ibmcloud", "is", "instances", *JSON)
    seeks = f"the {variable} of the instance {name}"
    return Lookup(variable, seeks, argv, "[]", give, where=(("name", name),))


def add_rule(
    plan: Plan,
    rule: str,
    group: str,
    match: tuple[str, str],
    remote: dict[str, Any],
    lookups: tuple[Lookup, ...] = (),
) -> FirewallAction:
    """Let `remote` in; `match` is the field, and its value, by which such a rule is recognised."""
    port = plan.ports.agent
    body = {"direction": "inbound", "protocol": "tcp", "port_min": port, "port_max": port, "remote": remote}
    (given,) = remote.values()
    ports = ("--port-min", str(port), "--port-max", str(port))
    add = ("ibmcloud", "is", "security-group-rule-add", "@group@", "inbound", "tcp")
    known = _rule_lookup(plan, match, none=Then.GO_ON, some=Then.NOTHING_TO_DO)
    return FirewallAction(
        rule=rule,
        does=f"let {match[1]} reach TCP {port}",
        argv=(*add, "--remote", given, *ports, *JSON),
        api="POST /v1/security_groups/@group@/rules",
        body=body,
        lookups=(group_lookup("group", group), known, *lookups),
    )


def delete_rule(plan: Plan, rule: str, group: str, match: tuple[str, str]) -> FirewallAction:
    none = Then.NOTHING_TO_DO
    return FirewallAction(
        rule=rule,
        does=f"no longer let {match[1]} reach TCP {plan.ports.agent}",
        argv=("ibmcloud", "is", "security-group-rule-delete", "@group@", "@rule@", "--force"),
        api="DELETE /v1/security_groups/@group@/rules/@rule@",
        lookups=(group_lookup("group", group, none=none), _rule_lookup(plan, match, none=none)),
        already=GONE,
    )


def _rule_lookup(plan: Plan, match: tuple[str, str], *, none: Then, some: Then = Then.GO_ON) -> Lookup:
    """Our rule, known by all that it says: anything else in the group is somebody else's."""
    port = plan.ports.agent
    exactly: tuple[tuple[str, str | int], ...] = (
        ("direction", "inbound"),
        ("protocol", "tcp"),
        ("port_min", port),
        ("port_max", port),
        match,
    )
    argv = ("ibmcloud", "is", "security-group-rules", "@group@", *JSON)
    seeks = f"the rule for {match[1]} on TCP {port}"
    return Lookup("rule", seeks, argv, "[]", "id", exactly, none=none, some=some, gone=GONE)
