"""OpenStack: a security group of our own on the bootstrap server, a rule per machine network.

Names are not unique there, so the group is looked for before it is made.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.model import (
    DESCRIPTION,
    FirewallAction,
    Lookup,
    Rule,
    Then,
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
    target = f"the server {bootstrap_name(plan)}, by a security group of its own"
    return [
        Rule(rule_name(plan), plan.ports.agent, sources, target, "group taken off and deleted with its rules")
    ]


def create(plan: Plan) -> list[FirewallAction]:
    permits = [_permit(plan, network) for network in source_networks(plan)]
    return [_make_group(plan), *permits, _wear(plan)]


def remove(plan: Plan) -> list[FirewallAction]:
    return [_take_off(plan), _delete_group(plan)]


def _make_group(plan: Plan) -> FirewallAction:
    name = rule_name(plan)
    # The tag lets the installer's `destroy cluster` find the group, should it ever be left behind.
    tag = f"openshiftClusterID={plan.infra_id}"
    text = ("--description", DESCRIPTION, "--tag", tag)
    return FirewallAction(
        rule=name,
        does=f"make the security group {name}",
        argv=("openstack", "security", "group", "create", name, *text, *_JSON),
        api="POST /v2.0/security-groups",
        body={"security_group": {"name": name, "description": DESCRIPTION}},
        lookups=(_group(plan, none=Then.GO_ON, some=Then.NOTHING_TO_DO),),
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
        does=f"let {network} reach TCP {port}",
        argv=("openstack", "security", "group", "rule", "create", *what, *who, *_JSON, "@group@"),
        api="POST /v2.0/security-group-rules",
        body={"security_group_rule": body},
        lookups=(_group(plan),),
        already=("Security group rule already exists",),
    )


def _wear(plan: Plan) -> FirewallAction:
    name, server = rule_name(plan), bootstrap_name(plan)
    worn = Lookup(
        "worn",
        f"the group on {server}",
        ("openstack", "server", "show", "@server@", *_JSON),
        items="security_groups[]",
        give="name",
        where=(("name", name),),
        none=Then.GO_ON,
        some=Then.NOTHING_TO_DO,
    )
    return FirewallAction(
        rule=name,
        does=f"put {name} on {server}",
        argv=("openstack", "server", "add", "security", "group", "@server@", "@group@"),
        api="POST /servers/@server@/action",
        body={"addSecurityGroup": {"name": "@group@"}},
        lookups=(_server(plan), _group(plan), worn),
    )


def _take_off(plan: Plan) -> FirewallAction:
    name, server, none = rule_name(plan), bootstrap_name(plan), Then.NOTHING_TO_DO
    return FirewallAction(
        rule=name,
        does=f"take {name} off {server}",
        argv=("openstack", "server", "remove", "security", "group", "@server@", "@group@"),
        api="POST /servers/@server@/action",
        body={"removeSecurityGroup": {"name": "@group@"}},
        lookups=(_server(plan, none), _group(plan, none=none)),
        already=("not associated with the instance", "No Server found", *_NOT_FOUND),
    )


def _delete_group(plan: Plan) -> FirewallAction:
    name = rule_name(plan)
    return FirewallAction(
        rule=name,
        does=f"delete the security group {name} with its rules",
        argv=("openstack", "security", "group", "delete", "@group@"),
        api="DELETE /v2.0/security-groups/@group@",
        lookups=(_group(plan, none=Then.NOTHING_TO_DO),),
        already=_GONE,
    )


def _group(plan: Plan, *, none: Then = Then.FAIL, some: Then = Then.GO_ON) -> Lookup:
    name = rule_name(plan)
    argv = ("openstack", "security", "group", "list", *_JSON)
    where = (("Name", name),)
    return Lookup("group", f"the security group {name}", argv, "[]", "ID", where, none=none, some=some)


def _server(plan: Plan, none: Then = Then.FAIL) -> Lookup:
    name = bootstrap_name(plan)
    argv = ("openstack", "server", "list", "--name", f"^{name}$", *_JSON)
    return Lookup("server", f"the server {name}", argv, "[]", "ID", where=(("Name", name),), none=none)
