"""OpenStack: creates a security group on the bootstrap server, with one rule per machine network.

Names are not unique there, so the group is looked up before it is created.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.model import (
    DESCRIPTION,
    FirewallAction,
    Lookup,
    Presence,
    Rule,
    bootstrap_name,
    rule_name,
    source_networks,
)
from bootbridge.bootstrap.plan.plan import IPNetwork, Plan

_JSON = ("-f", "json")
_NOT_FOUND = ("(HTTP 404)", "NotFoundException: 404")
_GONE = ("No SecurityGroup found", *_NOT_FOUND)


def rules(plan: Plan) -> list[Rule]:
    sources = tuple(map(str, source_networks(plan)))
    target = f"the server {bootstrap_name(plan)}, in a separate security group"
    return [
        Rule(rule_name(plan), plan.ports.agent, sources, target, "group detached and deleted with its rules")
    ]


def create(plan: Plan) -> list[FirewallAction]:
    permits = [_permit(plan, network) for network in source_networks(plan)]
    return [_create_group(plan), *permits, _attach_group(plan)]


def remove(plan: Plan) -> list[FirewallAction]:
    return [_detach_group(plan), _delete_group(plan)]


def _create_group(plan: Plan) -> FirewallAction:
    name = rule_name(plan)
    # By this tag the installer's `destroy cluster` finds a group that was left behind.
    tag = f"openshiftClusterID={plan.infra_id}"
    text = ("--description", DESCRIPTION, "--tag", tag)
    return FirewallAction(
        rule=name,
        description=f"create the security group {name}",
        argv=(*_openstack(plan), "security", "group", "create", name, *text, *_JSON),
        api="POST /v2.0/security-groups",
        body={"security_group": {"name": name, "description": DESCRIPTION}},
        lookups=(_group(plan, Presence.SKIP_IF_FOUND),),
    )


def _permit(plan: Plan, network: IPNetwork) -> FirewallAction:
    port, family = plan.ports.agent, f"IPv{network.version}"
    body = {
        "security_group_id": "@group@",
        "direction": "ingress",
        "ethertype": family,
        "protocol": "tcp",
        "port_range_min": port,
        "port_range_max": port,
        "remote_ip_prefix": str(network),
        "description": DESCRIPTION,
    }
    what = ("--ingress", "--ethertype", family, "--protocol", "tcp", "--dst-port", str(port))
    who = ("--remote-ip", str(network), "--description", DESCRIPTION)
    return FirewallAction(
        rule=rule_name(plan),
        description=f"allow {network} on TCP {port}",
        argv=(*_openstack(plan), "security", "group", "rule", "create", *what, *who, *_JSON, "@group@"),
        api="POST /v2.0/security-group-rules",
        body={"security_group_rule": body},
        lookups=(_group(plan),),
        already_done=("Security group rule already exists",),
    )


def _attach_group(plan: Plan) -> FirewallAction:
    name, server = rule_name(plan), bootstrap_name(plan)
    attached = Lookup(
        "attached",
        f"the group on {server}",
        (*_openstack(plan), "server", "show", "@server@", *_JSON),
        items="security_groups[]",
        select="name",
        where=(("name", name),),
        presence=Presence.SKIP_IF_FOUND,
    )
    return FirewallAction(
        rule=name,
        description=f"attach {name} to {server}",
        argv=(*_openstack(plan), "server", "add", "security", "group", "@server@", "@group@"),
        api="POST /servers/@server@/action",
        body={"addSecurityGroup": {"name": "@group@"}},
        lookups=(_server(plan), _group(plan), attached),
    )


def _detach_group(plan: Plan) -> FirewallAction:
    name, server, presence = rule_name(plan), bootstrap_name(plan), Presence.SKIP_IF_MISSING
    return FirewallAction(
        rule=name,
        description=f"detach {name} from {server}",
        argv=(*_openstack(plan), "server", "remove", "security", "group", "@server@", "@group@"),
        api="POST /servers/@server@/action",
        body={"removeSecurityGroup": {"name": "@group@"}},
        lookups=(_server(plan, presence), _group(plan, presence)),
        already_done=("not associated with the instance", "No Server found", *_NOT_FOUND),
    )


def _delete_group(plan: Plan) -> FirewallAction:
    name = rule_name(plan)
    return FirewallAction(
        rule=name,
        description=f"delete the security group {name} with its rules",
        argv=(*_openstack(plan), "security", "group", "delete", "@group@"),
        api="DELETE /v2.0/security-groups/@group@",
        lookups=(_group(plan, Presence.SKIP_IF_MISSING),),
        already_done=_GONE,
    )


def _group(plan: Plan, presence: Presence = Presence.REQUIRED) -> Lookup:
    name = rule_name(plan)
    argv = (*_openstack(plan), "security", "group", "list", *_JSON)
    return Lookup(
        "group", f"the security group {name}", argv, "[]", "ID", (("Name", name),), presence=presence
    )


def _server(plan: Plan, presence: Presence = Presence.REQUIRED) -> Lookup:
    name = bootstrap_name(plan)
    argv = (*_openstack(plan), "server", "list", "--name", f"^{name}$", *_JSON)
    return Lookup("server", f"the server {name}", argv, "[]", "ID", (("Name", name),), presence=presence)


def _openstack(plan: Plan) -> tuple[str, ...]:
    """Returns the program and the entry of clouds.yaml that install-config names."""
    return ("openstack", *(("--os-cloud", plan.cloud.cloud_name) if plan.cloud.cloud_name else ()))
