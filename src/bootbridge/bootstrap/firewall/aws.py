"""AWS: a security group of our own on the bootstrap node's interface, open to the cluster's two groups.

Not a rule in the control plane's group: the installer's cluster-api provider revokes rules there that
it does not know, and the control plane's machines need no open port. Groups as sources hold for
IPv4 and IPv6 alike.
"""

from __future__ import annotations

import json
from typing import Any

from bootbridge.bootstrap.firewall.model import (
    DESCRIPTION,
    FirewallAction,
    Lookup,
    Rule,
    Then,
    bootstrap_name,
    rule_name,
)
from bootbridge.bootstrap.plan.plan import Plan

_JSON = ("--output", "json")
_GONE = ("InvalidGroup.NotFound",)


def rules(plan: Plan) -> list[Rule]:
    sources = tuple(f"security group {group}" for group in _source_groups(plan))
    target = f"the interface of {bootstrap_name(plan)}, by a security group of its own"
    return [Rule(rule_name(plan), plan.ports.agent, sources, target, "rules revoked, group deleted")]


def create(plan: Plan) -> list[FirewallAction]:
    name = rule_name(plan)
    return [
        _make_group(plan, name),
        *(_permit(plan, name, source, "authorize") for source in _source_groups(plan)),
        _wear(plan, name),
    ]


def remove(plan: Plan) -> list[FirewallAction]:
    name = rule_name(plan)
    return [
        *(_permit(plan, name, source, "revoke") for source in _source_groups(plan)),
        _take_off(name),
        _delete_group(name),
    ]


def _source_groups(plan: Plan) -> tuple[str, ...]:
    return f"{plan.infra_id}-controlplane", f"{plan.infra_id}-node"


def _make_group(plan: Plan, name: str) -> FirewallAction:
    # The tag lets the installer's `destroy cluster` find the group, should it ever be left behind.
    tags = [
        {"Key": "Name", "Value": name},
        {"Key": f"kubernetes.io/cluster/{plan.infra_id}", "Value": "owned"},
    ]
    body = {
        "GroupName": name,
        "Description": DESCRIPTION,
        "VpcId": "@vpc@",
        "TagSpecifications": [{"ResourceType": "security-group", "Tags": tags}],
    }
    return FirewallAction(
        rule=name,
        does=f"make the security group {name}",
        argv=_ec2("create-security-group", body),
        api="ec2:CreateSecurityGroup",
        body=body,
        lookups=(_vpc(plan),),
        already=("InvalidGroup.Duplicate",),
    )


def _permit(plan: Plan, name: str, source: str, verb: str) -> FirewallAction:
    """One source at a time: EC2 takes a request whole or not at all, so a duplicate would hide the rest."""
    adding = verb == "authorize"
    pair = {"GroupId": "@source@"} | ({"Description": DESCRIPTION} if adding else {})
    port = plan.ports.agent
    permission = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "UserIdGroupPairs": [pair]}
    body = {"GroupId": "@group@", "IpPermissions": [permission]}
    none = Then.FAIL if adding else Then.NOTHING_TO_DO
    what = "let" if adding else "no longer let"
    return FirewallAction(
        rule=name,
        does=f"{what} {source} reach TCP {port}",
        argv=_ec2(f"{verb}-security-group-ingress", body),
        api=f"ec2:{verb.capitalize()}SecurityGroupIngress",
        body=body,
        lookups=(_group("group", name, none), _group("source", source, none)),
        already=("InvalidPermission.Duplicate",) if adding else ("InvalidPermission.NotFound", *_GONE),
    )


def _wear(plan: Plan, name: str) -> FirewallAction:
    return FirewallAction(
        rule=name,
        does=f"put {name} on the interface of {bootstrap_name(plan)}",
        argv=(*_interface_groups(), "@others@", "@group@"),
        api="ec2:ModifyNetworkInterfaceAttribute",
        body={"NetworkInterfaceId": "@interface@", "Groups": ["@others@", "@group@"]},
        lookups=(_group("group", name), _first_interface(plan), _other_groups(name)),
    )


def _take_off(name: str) -> FirewallAction:
    find = ("--filters", "Name=group-id,Values=@group@")
    interface = Lookup(
        "interface",
        f"an interface with the group {name}",
        ("aws", "ec2", "describe-network-interfaces", *find, *_JSON),
        items="NetworkInterfaces[]",
        give="NetworkInterfaceId",
        none=Then.NOTHING_TO_DO,
    )
    return FirewallAction(
        rule=name,
        does=f"take {name} off the interface",
        argv=(*_interface_groups(), "@others@"),
        api="ec2:ModifyNetworkInterfaceAttribute",
        body={"NetworkInterfaceId": "@interface@", "Groups": ["@others@"]},
        lookups=(_group("group", name, Then.NOTHING_TO_DO), interface, _other_groups(name)),
        already=("InvalidNetworkInterfaceID.NotFound",),
    )


def _delete_group(name: str) -> FirewallAction:
    body = {"GroupId": "@group@"}
    return FirewallAction(
        rule=name,
        does=f"delete the security group {name}",
        argv=_ec2("delete-security-group", body),
        api="ec2:DeleteSecurityGroup",
        body=body,
        lookups=(_group("group", name, Then.NOTHING_TO_DO),),
        already=_GONE,
    )


def _ec2(command: str, body: dict[str, Any]) -> tuple[str, ...]:
    return ("aws", "ec2", command, "--cli-input-json", json.dumps(body), *_JSON)


def _interface_groups() -> tuple[str, ...]:
    verb = "modify-network-interface-attribute"
    return ("aws", "ec2", verb, "--network-interface-id", "@interface@", "--groups")


def _vpc(plan: Plan) -> Lookup:
    seeks = f"the VPC of the running instance {bootstrap_name(plan)}"
    return Lookup("vpc", seeks, _describe_bootstrap(plan), "Reservations[].Instances[]", "VpcId")


def _first_interface(plan: Plan) -> Lookup:
    return Lookup(
        "interface",
        f"the first interface of the running instance {bootstrap_name(plan)}",
        _describe_bootstrap(plan),
        items="Reservations[].Instances[].NetworkInterfaces[]",
        give="NetworkInterfaceId",
        where=(("Attachment.DeviceIndex", 0),),
    )


def _describe_bootstrap(plan: Plan) -> tuple[str, ...]:
    states = "Name=instance-state-name,Values=pending,running"
    filters = ("--filters", f"Name=tag:Name,Values={bootstrap_name(plan)}", states)
    return ("aws", "ec2", "describe-instances", *filters, *_JSON)


def _group(variable: str, name: str, none: Then = Then.FAIL) -> Lookup:
    filters = ("--filters", f"Name=group-name,Values={name}")
    argv = ("aws", "ec2", "describe-security-groups", *filters, *_JSON)
    return Lookup(variable, f"the security group {name}", argv, "SecurityGroups[]", "GroupId", none=none)


def _other_groups(name: str) -> Lookup:
    """What the interface wears besides ours: EC2 only replaces the whole list."""
    which = ("--network-interface-ids", "@interface@")
    return Lookup(
        "others",
        "the interface's other security groups",
        ("aws", "ec2", "describe-network-interfaces", *which, *_JSON),
        items="NetworkInterfaces[].Groups[]",
        give="GroupId",
        unless=(("GroupName", name),),
        many=True,
    )
