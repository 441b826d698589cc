"""AWS: creates a security group on the bootstrap node's interface, open to the cluster's two groups.

The control plane's group gets no rule: the installer's cluster-api provider revokes rules there that it does
not know, and the control plane's machines need no open port. Groups as sources apply to IPv4 and IPv6.
The cluster's groups are found by their tag `Name`: Terraform, until 4.15, generated the groups' own names.
"""

from __future__ import annotations

import json
from typing import Any

from bootbridge.bootstrap.firewall.installer_names import control_plane_names, worker_names
from bootbridge.bootstrap.firewall.model import (
    DESCRIPTION,
    Condition,
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
    sources = tuple(f"security group {' or '.join(names)}" for names in _source_groups(plan))
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
        _detach_group(plan, name),
        _delete_group(plan, name),
    ]


def _source_groups(plan: Plan) -> tuple[tuple[str, ...], ...]:
    return control_plane_names(plan), worker_names(plan)


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
        argv=_ec2(plan, "create-security-group", body),
        api="ec2:CreateSecurityGroup",
        body=body,
        lookups=(_of_bootstrap(plan, "vpc", "VpcId"), *_region(plan)),
        already_done=("InvalidGroup.Duplicate",),
    )


def _permit(plan: Plan, name: str, sources: tuple[str, ...], verb: str) -> FirewallAction:
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
        description=f"{'allow' if adding else 'revoke'} {' or '.join(sources)} on TCP {port}",
        argv=_ec2(plan, f"{verb}-security-group-ingress", body),
        api=f"ec2:{verb.capitalize()}SecurityGroupIngress",
        body=body,
        lookups=(_group(plan, name, presence), _installer_group(plan, sources, presence)),
        already_done=duplicate if adding else missing,
    )


def _attach_group(plan: Plan, name: str) -> FirewallAction:
    interfaces = "Reservations[].Instances[].NetworkInterfaces[]"
    first = _of_bootstrap(
        plan, "interface", "NetworkInterfaceId", interfaces, (("Attachment.DeviceIndex", 0),)
    )
    return _set_groups(
        plan,
        name,
        f"attach {name} to the interface of {bootstrap_name(plan)}",
        ("@others@", "@group@"),
        (_group(plan, name), first, _other_groups(plan, name)),
    )


def _detach_group(plan: Plan, name: str) -> FirewallAction:
    interface = Lookup(
        "interface",
        f"an interface with the group {name}",
        _describe(plan, "network-interfaces", "--filters", "Name=group-id,Values=@group@"),
        items="NetworkInterfaces[]",
        select="NetworkInterfaceId",
        presence=Presence.SKIP_IF_MISSING,
    )
    return _set_groups(
        plan,
        name,
        f"detach {name} from the interface",
        ("@others@",),
        (_group(plan, name, Presence.SKIP_IF_MISSING), interface, _other_groups(plan, name)),
        already_done=("InvalidNetworkInterfaceID.NotFound",),
    )


def _set_groups(
    plan: Plan,
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
        argv=("aws", "ec2", *command, *groups, *_in_region(plan)),
        api="ec2:ModifyNetworkInterfaceAttribute",
        body={"NetworkInterfaceId": "@interface@", "Groups": list(groups)},
        lookups=lookups,
        already_done=already_done,
    )


def _delete_group(plan: Plan, name: str) -> FirewallAction:
    body = {"GroupId": "@group@"}
    return FirewallAction(
        rule=name,
        description=f"delete the security group {name}",
        argv=_ec2(plan, "delete-security-group", body),
        api="ec2:DeleteSecurityGroup",
        body=body,
        lookups=(_group(plan, name, Presence.SKIP_IF_MISSING),),
        already_done=_GROUP_NOT_FOUND,
    )


def _ec2(plan: Plan, command: str, body: dict[str, Any]) -> tuple[str, ...]:
    return ("aws", "ec2", command, "--cli-input-json", json.dumps(body), *_in_region(plan), *_JSON)


def _describe(plan: Plan, what: str, *arguments: str) -> tuple[str, ...]:
    return ("aws", "ec2", f"describe-{what}", *arguments, *_in_region(plan), *_JSON)


def _in_region(plan: Plan) -> tuple[str, ...]:
    return ("--region", plan.cloud.region) if plan.cloud.region else ()


def _region(plan: Plan) -> tuple[Lookup, ...]:
    """Finds the region that the CLI uses by default, for the record, if the plan has none."""
    if plan.cloud.region:
        return ()
    zone = _of_bootstrap(plan, "zone", "Placement.AvailabilityZone")
    argv = _describe(plan, "availability-zones", "--zone-names", "@zone@")
    return zone, Lookup("region", "the region of the instance", argv, "AvailabilityZones[]", "RegionName")


def _of_bootstrap(
    plan: Plan,
    variable: str,
    select: str,
    items: str = "Reservations[].Instances[]",
    where: tuple[Condition, ...] = (),
) -> Lookup:
    name, states = bootstrap_name(plan), "Name=instance-state-name,Values=pending,running"
    argv = _describe(plan, "instances", "--filters", f"Name=tag:Name,Values={name}", states)
    where_to_look = f"region {plan.cloud.region}" if plan.cloud.region else "the CLI's default region"
    return Lookup(
        variable,
        f"the {variable} of the running instance {name}",
        argv,
        items,
        select,
        where,
        if_missing=f"in {where_to_look}",
    )


def _group(plan: Plan, name: str, presence: Presence = Presence.REQUIRED) -> Lookup:
    argv = _describe(plan, "security-groups", "--filters", f"Name=group-name,Values={name}")
    description = f"the security group {name}"
    return Lookup("group", description, argv, "SecurityGroups[]", "GroupId", presence=presence)


def _installer_group(plan: Plan, names: tuple[str, ...], presence: Presence) -> Lookup:
    argv = _describe(plan, "security-groups", "--filters", f"Name=tag:Name,Values={','.join(names)}")
    description = f"the security group {' or '.join(names)}"
    return Lookup("source", description, argv, "SecurityGroups[]", "GroupId", presence=presence)


def _other_groups(plan: Plan, name: str) -> Lookup:
    """Finds the interface's other groups: EC2 can only replace the whole list."""
    return Lookup(
        "others",
        "the interface's other security groups",
        _describe(plan, "network-interfaces", "--network-interface-ids", "@interface@"),
        items="NetworkInterfaces[].Groups[]",
        select="GroupId",
        excluding=(("GroupName", name),),
        multiple=True,
    )
