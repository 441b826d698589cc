"""Azure: creates a rule per IP version in the cluster's security group, from the machine networks.

A rule cannot mix IP versions. PUT is idempotent. Creation and removal use the same name.
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
from bootbridge.bootstrap.plan.plan import Plan

# Unique in the group: the installer counts up from 100, Azure's defaults start at 65000.
_PRIORITY = {4: 1891, 6: 1896}
_NOT_FOUND = ("ResourceNotFound", "ResourceGroupNotFound")
_FIND_ADDRESSES = (
    "[].{version: privateIPAddressVersion || privateIpAddressVersion, "
    "address: privateIPAddress || privateIpAddress}"
)
_JSON = ("--output", "json")


def rules(plan: Plan) -> list[Rule]:
    target = f"the address of {bootstrap_name(plan)}"
    return [
        Rule(
            name=_name(plan, version),
            port=plan.ports.agent,
            sources=_sources(plan, version),
            target=_destination(plan, version) or target,
            removal="rule deleted by its name",
        )
        for version in _families(plan)
    ]


def create(plan: Plan) -> list[FirewallAction]:
    return [_put(plan, version) for version in _families(plan)]


def remove(plan: Plan) -> list[FirewallAction]:
    return [_delete(plan, version) for version in _families(plan)]


def _families(plan: Plan) -> tuple[int, ...]:
    return tuple(dict.fromkeys(network.version for network in source_networks(plan)))


def _name(plan: Plan, version: int) -> str:
    return rule_name(plan, f"v{version}")


def _sources(plan: Plan, version: int) -> tuple[str, ...]:
    return tuple(str(network) for network in source_networks(plan) if network.version == version)


def _destination(plan: Plan, version: int) -> str:
    return next((str(address) for address in plan.node_ips if address.version == version), "")


def _put(plan: Plan, version: int) -> FirewallAction:
    name, sources, port = _name(plan, version), _sources(plan, version), plan.ports.agent
    destination = _destination(plan, version)
    lookups: tuple[Lookup, ...] = (_resource_group(plan, Presence.REQUIRED),)
    if not destination:
        destination, lookups = "@address@", (*lookups, _address(plan, version))
    properties = {
        "description": DESCRIPTION,
        "priority": _PRIORITY[version],
        "direction": "Inbound",
        "access": "Allow",
        "protocol": "Tcp",
        "sourceAddressPrefixes": list(sources),
        "sourcePortRange": "*",
        "destinationAddressPrefix": destination,
        "destinationPortRange": str(port),
    }
    argv = (
        *_rule("create", plan, name),
        *("--priority", str(_PRIORITY[version]), "--direction", "Inbound", "--access", "Allow"),
        *("--protocol", "Tcp", "--source-address-prefixes", *sources, "--source-port-ranges", "*"),
        *("--destination-address-prefixes", destination, "--destination-port-ranges", str(port)),
        *("--description", DESCRIPTION, *_JSON),
    )
    description = f"allow {', '.join(sources)} on TCP {port} by the rule {name}"
    return FirewallAction(
        name, description, argv, f"PUT {_path(plan, name)}", {"properties": properties}, lookups
    )


def _delete(plan: Plan, version: int) -> FirewallAction:
    name = _name(plan, version)
    return FirewallAction(
        rule=name,
        description=f"delete the rule {name}",
        argv=_rule("delete", plan, name),
        api=f"DELETE {_path(plan, name)}",
        lookups=(_resource_group(plan, Presence.SKIP_IF_MISSING),),
        already_done=_NOT_FOUND,
    )


def _rule(verb: str, plan: Plan, name: str) -> tuple[str, ...]:
    where = ("--resource-group", "@resource_group@", "--nsg-name", _group(plan), "--name", name)
    return ("az", "network", "nsg", "rule", verb, *where)


def _group(plan: Plan) -> str:
    return f"{plan.infra_id}-nsg"


def _path(plan: Plan, name: str) -> str:
    group = (
        f"/resourceGroups/@resource_group@/providers/Microsoft.Network/networkSecurityGroups/{_group(plan)}"
    )
    return f"/subscriptions/{{subscription}}{group}/securityRules/{name}"


def _resource_group(plan: Plan, presence: Presence) -> Lookup:
    return Lookup(
        "resource_group",
        f"the network security group {_group(plan)}",
        ("az", "network", "nsg", "list", *_JSON),
        items="[]",
        select="resourceGroup",
        where=(("name", _group(plan)),),
        presence=presence,
    )


def _address(plan: Plan, version: int) -> Lookup:
    interface = f"{bootstrap_name(plan)}-nic"
    where = ("--resource-group", "@resource_group@", "--nic-name", interface)
    return Lookup(
        "address",
        f"an IPv{version} address on {interface}",
        ("az", "network", "nic", "ip-config", "list", *where, "--query", _FIND_ADDRESSES, *_JSON),
        items="[]",
        select="address",
        where=(("version", f"IPv{version}"),),
    )
