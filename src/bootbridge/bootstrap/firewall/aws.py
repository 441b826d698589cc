"""AWS: creates a security group on the bootstrap node's interface, open to the cluster's two groups.

The control plane's group gets no rule: the installer's cluster-api provider revokes rules there that it does
not know, and the control plane's machines need no open port. Groups as sources apply to IPv4 and IPv6.
"""

from __future__ import annotations

import json
from typing import Any

from bootbridge.bootstrap.firewall.model import (
    DESCRIPTION,
    FirewallAction,
    Lookup,
    Presence,
    Rule,
    bootstrap_name,
    rule_name,
)
from bootbridge.bootstrap.plan.plan import Plan

_JSON = ("--output", "json")
_GROUP_NOT_FOUND = ("InvalidGroup.NotFound",)


def rules(plan: Plan) -> list[Rule]:
    sources = tuple(f"security group {group}" for group in _source_groups(plan))
    target = f"the interface of {bootstrap_name(plan)}, in a separate security group"
    return [Rule(rule_name(plan), plan.ports.agent, sources, target, "rules revoked, group deleted")]


def create(plan: Plan) -> list[FirewallAction]:
    name = rule_name(plan)
    return [
        _create_group(plan, name),
        *(_permit(plan, name, source, "authorize") for source in _source_groups(plan)),
        _attach_group(plan, name),
    ]


def remove(plan: Plan) -> list[FirewallAction]:
    name = rule_name(plan)
    return [
        *(_permit(plan, name, source, "revoke") for source in _source_groups(plan)),
        _detach_group(name),
        _delete_group(name),
    ]


def _source_groups(plan: Plan) -> tuple[str, ...]:
    return f"{plan.infra_id}-controlplane", f"{plan.infra_id}-node"


def _create_group(plan: Plan, name: str) -> FirewallAction:
    # By this tag the installer's `destroy cluster` finds a group that was left behind.
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
        description=f"create the security group {name}",
        argv=_ec2("create-security-group", body),
        api="ec2:CreateSecurityGroup",
        body=body,
        lookups=(_of_bootstrap(plan, "vpc", "VpcId"),),
        already_done=("InvalidGroup.Duplicate",),
    )


def _permit(plan: Plan, name: str, source: str, verb: str) -> FirewallAction:
    """Authorizes or revokes one source: EC2 rejects a whole request if one of its rules is a duplicate."""
    adding = verb == "authorize"
    pair = {"GroupId": "@source@"} | ({"Description": DESCRIPTION} if adding else {})
    port = plan.ports.agent
    permission = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "UserIdGroupPairs": [pair]}
    body = {"GroupId": "@group@", "IpPermissions": [permission]}
    presence = Presence.REQUIRED if adding else Presence.SKIP_IF_MISSING
    duplicate, missing = ("InvalidPermission.Duplicate",), ("InvalidPermission.NotFound", *_GROUP_NOT_FOUND)
    return FirewallAction(
        rule=name,
        description=f"{'allow' if adding else 'revoke'} {source} on TCP {port}",
        argv=_ec2(f"{verb}-security-group-ingress", body),
        api=f"ec2:{verb.capitalize()}SecurityGroupIngress",
        body=body,
        lookups=(_group("group", name, presence), _group("source", source, presence)),
        already_done=duplicate if adding else missing,
    )


def _attach_group(plan: Plan, name: str) -> FirewallAction:
    interfaces = "Reservations[].Instances[].NetworkInterfaces[]"
    first = _of_bootstrap(
        plan, "interface", "NetworkInterfaceId", interfaces, (("Attachment.DeviceIndex", 0),)
    )
    return _set_groups(
        name,
        f"attach {name} to the interface of {bootstrap_name(plan)}",
        ("@others@", "@group@"),
        (_group("group", name), first, _other_groups(name)),
    )


def _detach_group(name: str) -> FirewallAction:
    interface = Lookup(
        "interface",
        f"an interface with the group {name}",
        _describe("network-interfaces", "--filters", "Name=group-id,Values=@group@"),
        items="NetworkInterfaces[]",
        select="NetworkInterfaceId",
        presence=Presence.SKIP_IF_MISSING,
    )
    return _set_groups(
        name,
        f"detach {name} from the interface",
        ("@others@",),
        (_group("group", name, Presence.SKIP_IF_MISSING), interface, _other_groups(name)),
        already_done=("InvalidNetworkInterfaceID.NotFound",),
    )


def _set_groups(
    name: str,
    description: str,
    groups: tuple[str, ...],
    lookups: tuple[Lookup, ...],
    already_done: tuple[str, ...] = (),
) -> FirewallAction:
    command = ("modify-network-interface-attribute", "--network-interface-id", "@interface@", "--groups")
    return FirewallAction(
        rule=name,
        description=description,
        argv=("aws", "ec2", *command, *groups),
        api="ec2:ModifyNetworkInterfaceAttribute",
        body={"NetworkInterfaceId": "@interface@", "Groups": list(groups)},
        lookups=lookups,
        already_done=already_done,
    )


def _delete_group(name: str) -> FirewallAction:
    body = {"GroupId": "@group@"}
    return FirewallAction(
        rule=name,
        description=f"delete the security group {name}",
        argv=_ec2("delete-security-group", body),
        api="ec2:DeleteSecurityGroup",
        body=body,
        lookups=(_group("group", name, Presence.SKIP_IF_MISSING),),
        already_done=_GROUP_NOT_FOUND,
    )


def _ec2(command: str, body: dict[str, Any]) -> tuple[str, ...]:
    return ("aws", "ec2", command, "--cli-input-json", json.dumps(body), *_JSON)


def _describe(what: str, *arguments: str) -> tuple[str, ...]:
    return ("aws", "ec2", f"describe-{what}", *arguments, *_JSON)


def _of_bootstrap(
    plan: Plan,
    variable: str,
    select: str,
    items: str = "Reservations[].Instances[]",
    where: tuple[tuple[str, str | int], ...] = (),
) -> Lookup:
    name, states = bootstrap_name(plan), "Name=instance-state-name,Values=pending,running"
    argv = _describe("instances", "--filters", f"Name=tag:Name,Values={name}", states)
    return Lookup(variable, f"the {variable} of the running instance {name}", argv, items, select, where)


def _group(variable: str, name: str, presence: Presence = Presence.REQUIRED) -> Lookup:
    argv = _describe("security-groups", "--filters", f"Name=group-name,Values={name}")
    description = f"the security group {name}"
    return Lookup(variable, description, argv, "SecurityGroups[]", "GroupId", presence=presence)


def _other_groups(name: str) -> Lookup:
    """Finds the interface's other groups: EC2 can only replace the whole list."""
    return Lookup(
        "others",
        "the interface's other security groups",
        _describe("network-interfaces", "--network-interface-ids", "@interface@"),
        items="NetworkInterfaces[].Groups[]",
        select="GroupId",
        excluding=(("GroupName", name),),
        multiple=True,
    )
