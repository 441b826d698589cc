"""IBM Cloud: a security group of our own on the bootstrap instance's interface, open to the cluster's group.

Rules have no names there, and the CLI makes the same rule twice without a word: both are looked up first.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.ibm_vpc import (
    GONE,
    JSON,
    add_rule,
    delete_rule,
    group_lookup,
    of_instance,
)
from bootbridge.bootstrap.firewall.model import (
    FirewallAction,
    Lookup,
    Rule,
    Then,
    bootstrap_name,
    rule_name,
)
from bootbridge.bootstrap.plan.plan import Plan


def rules(plan: Plan) -> list[Rule]:
    target = f"the interface of {bootstrap_name(plan)}, by a security group of its own"
    sources = (f"security group {_source(plan)}",)
    return [Rule(rule_name(plan), plan.ports.agent, sources, target, "rule and group deleted")]


def create(plan: Plan) -> list[FirewallAction]:
    name, source = rule_name(plan), _source(plan)
    remote = group_lookup("remote", source)
    return [
        _make_group(plan, name),
        add_rule(plan, name, name, ("remote.name", source), {"id": "@remote@"}, (remote,)),
        _wear(plan, name),
    ]


def remove(plan: Plan) -> list[FirewallAction]:
    name = rule_name(plan)
    removed = delete_rule(plan, name, name, ("remote.name", _source(plan)))
    return [removed, _take_off(name), _delete_group(name)]


def _source(plan: Plan) -> str:
    return f"{plan.infra_id}-sg-cluster-wide"


def _make_group(plan: Plan, name: str) -> FirewallAction:
    return FirewallAction(
        rule=name,
        does=f"make the security group {name}",
        argv=("ibmcloud", "is", "security-group-create", name, "@vpc@", *JSON),
        api="POST /v1/security_groups",
        body={"name": name, "vpc": {"id": "@vpc@"}},
        lookups=(
            group_lookup("group", name, none=Then.GO_ON, some=Then.NOTHING_TO_DO),
            of_instance(plan, "vpc", "vpc.id"),
        ),
    )


def _wear(plan: Plan, name: str) -> FirewallAction:
    return FirewallAction(
        rule=name,
        does=f"put {name} on the interface of {bootstrap_name(plan)}",
        argv=("ibmcloud", "is", "security-group-target-add", "@group@", "@interface@", *JSON),
        api="PUT /v1/security_groups/@group@/targets/@interface@",
        lookups=(
            group_lookup("group", name),
            of_instance(plan, "interface", "primary_network_interface.id"),
            _target("worn", name, none=Then.GO_ON, some=Then.NOTHING_TO_DO),
        ),
    )


def _take_off(name: str) -> FirewallAction:
    none = Then.NOTHING_TO_DO
    return FirewallAction(
        rule=name,
        does=f"take {name} off the interface",
        argv=("ibmcloud", "is", "security-group-target-remove", "@group@", "@interface@", "--force"),
        api="DELETE /v1/security_groups/@group@/targets/@interface@",
        lookups=(group_lookup("group", name, none=none), _target("interface", name, none=none)),
        already=GONE,
    )


def _delete_group(name: str) -> FirewallAction:
    return FirewallAction(
        rule=name,
        does=f"delete the security group {name}",
        argv=("ibmcloud", "is", "security-group-delete", "@group@", "--force"),
        api="DELETE /v1/security_groups/@group@",
        lookups=(group_lookup("group", name, none=Then.NOTHING_TO_DO),),
        already=GONE,
    )


def _target(variable: str, name: str, *, none: Then, some: Then = Then.GO_ON) -> Lookup:
    argv = ("ibmcloud", "is", "security-group-targets", "@group@", *JSON)
    return Lookup(variable, f"an interface with the group {name}", argv, "[]", "id", none=none, some=some)
