"""IBM Cloud: creates a security group on the bootstrap instance's interface, open to the cluster's group.

Rules have no names there, and the CLI creates duplicates without an error. So both are looked up first.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.ibm_vpc import (
    JSON,
    NOT_FOUND,
    add_rule,
    delete_rule,
    group_lookup,
    of_instance,
    target_region,
)
from bootbridge.bootstrap.firewall.installer_names import cluster_names
from bootbridge.bootstrap.firewall.model import (
    FirewallAction,
    Lookup,
    Presence,
    Rule,
    bootstrap_name,
    rule_name,
)
from bootbridge.bootstrap.plan.plan import Plan


def rules(plan: Plan) -> list[Rule]:
    target = f"the interface of {bootstrap_name(plan)}, in a separate security group"
    sources = (f"security group {' or '.join(cluster_names(plan))}",)
    return [Rule(rule_name(plan), plan.ports.agent, sources, target, "rule and group deleted")]


def create(plan: Plan) -> list[FirewallAction]:
    name, source = rule_name(plan), cluster_names(plan)
    remote = group_lookup("remote", source)
    return [
        _create_group(plan, name),
        add_rule(plan, name, (name,), ("remote.name", source), {"id": "@remote@"}, (remote,)),
        _attach_group(plan, name),
    ]


def remove(plan: Plan) -> list[FirewallAction]:
    name = rule_name(plan)
    removed = delete_rule(plan, name, (name,), ("remote.name", cluster_names(plan)))
    return [removed, _detach_group(plan, name), _delete_group(plan, name)]


def _create_group(plan: Plan, name: str) -> FirewallAction:
    # The resource group of the cluster, where the installer's `destroy cluster` deletes what was left behind.
    group = ("--resource-group-name", plan.cloud.resource_group) if plan.cloud.resource_group else ()
    return FirewallAction(
        rule=name,
        description=f"create the security group {name}",
        argv=("ibmcloud", "is", "security-group-create", name, "@vpc@", *group, *JSON),
        api="POST /v1/security_groups",
        body={"name": name, "vpc": {"id": "@vpc@"}},
        lookups=(
            target_region(plan),
            group_lookup("group", (name,), Presence.SKIP_IF_FOUND),
            of_instance(plan, "vpc", "vpc.id"),
        ),
    )


def _attach_group(plan: Plan, name: str) -> FirewallAction:
    return FirewallAction(
        rule=name,
        description=f"attach {name} to the interface of {bootstrap_name(plan)}",
        argv=("ibmcloud", "is", "security-group-target-add", "@group@", "@interface@", *JSON),
        api="PUT /v1/security_groups/@group@/targets/@interface@",
        lookups=(
            target_region(plan),
            group_lookup("group", (name,)),
            of_instance(plan, "interface", "primary_network_interface.id"),
            _target("attached", name, Presence.SKIP_IF_FOUND),
        ),
    )


def _detach_group(plan: Plan, name: str) -> FirewallAction:
    presence = Presence.SKIP_IF_MISSING
    return FirewallAction(
        rule=name,
        description=f"detach {name} from the interface",
        argv=("ibmcloud", "is", "security-group-target-remove", "@group@", "@interface@", "--force"),
        api="DELETE /v1/security_groups/@group@/targets/@interface@",
        lookups=(
            target_region(plan),
            group_lookup("group", (name,), presence),
            _target("interface", name, presence),
        ),
        already_done=NOT_FOUND,
    )


def _delete_group(plan: Plan, name: str) -> FirewallAction:
    return FirewallAction(
        rule=name,
        description=f"delete the security group {name}",
        argv=("ibmcloud", "is", "security-group-delete", "@group@", "--force"),
        api="DELETE /v1/security_groups/@group@",
        lookups=(target_region(plan), group_lookup("group", (name,), Presence.SKIP_IF_MISSING)),
        already_done=NOT_FOUND,
    )


def _target(variable: str, name: str, presence: Presence) -> Lookup:
    argv = ("ibmcloud", "is", "security-group-targets", "@group@", *JSON)
    return Lookup(variable, f"an interface with the group {name}", argv, "[]", "id", presence=presence)
