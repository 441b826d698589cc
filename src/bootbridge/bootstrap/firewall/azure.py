"""Azure: creates a rule per IP version in every security group that filters the bootstrap node's interface.

These are the group of the interface's subnet and, if there is one, the interface's own. Both are asked of the
cloud: with an existing VNet the installer's group `<infraID>-nsg` exists, but filters nothing. A rule cannot
mix IP versions. PUT is idempotent. The removal finds the rules by their names, in whichever group they are.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.model import (
    DESCRIPTION,
    Condition,
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
# install-config's names of environments, and those of the CLI where they differ.
_CLI_CLOUDS = {"AzurePublicCloud": "AzureCloud", "AzureUSGovernmentCloud": "AzureUSGovernment"}


def rules(plan: Plan) -> list[Rule]:
    target = f"the address of {bootstrap_name(plan)}"
    return [
        Rule(
            name=_name(plan, version),
            port=plan.ports.agent,
            sources=_sources(plan, version),
            target=f"{_destination(plan, version) or target}, in the security group of its subnet",
            removal="rule deleted by its name",
        )
        for version in _families(plan)
    ]


def create(plan: Plan) -> list[FirewallAction]:
    groups = {"subnet": _subnet_group(plan), "interface": _interface_group(plan)}
    return [
        _put(plan, version, owner, lookups)
        for version in _families(plan)
        for owner, lookups in groups.items()
    ]


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


def _put(plan: Plan, version: int, owner: str, group: tuple[Lookup, ...]) -> FirewallAction:
    name, sources, port = _name(plan, version), _sources(plan, version), plan.ports.agent
    destination = _destination(plan, version)
    lookups = (*_active_cloud(plan), *group)
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
    place = ("--resource-group", "@group_resource_group@", "--nsg-name", "@group@", "--name", name)
    argv = (
        *("az", "network", "nsg", "rule", "create", *place),
        *("--priority", str(_PRIORITY[version]), "--direction", "Inbound", "--access", "Allow"),
        *("--protocol", "Tcp", "--source-address-prefixes", *sources, "--source-port-ranges", "*"),
        *("--destination-address-prefixes", destination, "--destination-port-ranges", str(port)),
        *("--description", DESCRIPTION, *_JSON),
    )
    return FirewallAction(
        rule=name,
        description=f"allow {', '.join(sources)} on TCP {port} by the rule {name} of the {owner}'s group",
        argv=argv,
        api=f"PUT @group_id@/securityRules/{name}",
        body={"properties": properties},
        lookups=lookups,
    )


def _delete(plan: Plan, version: int) -> FirewallAction:
    name = _name(plan, version)
    rules_found = Lookup(
        "rules",
        f"the rule {name} in any security group",
        ("az", "network", "nsg", "list", *_JSON),
        items="[].securityRules[]",
        select="id",
        where=(("name", name),),
        multiple=True,
        presence=Presence.SKIP_IF_MISSING,
    )
    return FirewallAction(
        rule=name,
        description=f"delete the rule {name}",
        argv=("az", "network", "nsg", "rule", "delete", "--ids", "@rules@"),
        api="DELETE @rules@",
        lookups=(*_active_cloud(plan), rules_found),
        already_done=_NOT_FOUND,
    )


def _active_cloud(plan: Plan) -> tuple[Lookup, ...]:
    """Checks that the CLI talks to install-config's environment: no flag of a command selects it."""
    name = plan.cloud.cloud_name
    if not name:
        return ()
    wanted = _CLI_CLOUDS.get(name, name)
    return (
        Lookup(
            "active_cloud",
            f"the environment {wanted} as the CLI's active one",
            ("az", "cloud", "show", *_JSON),
            items="",
            select="name",
            where=(("name", wanted),),
            if_missing=f"run: az cloud set --name {wanted}, then az login",
        ),
    )


def _subnet_group(plan: Plan) -> tuple[Lookup, ...]:
    """Finds the group of the subnet that the bootstrap node's interface is in."""
    select, of_interface = "ipConfigurations[].subnet.id", (("name", _interface(plan)),)
    described = f"the subnet of {_interface(plan)}"
    subnet = Lookup("subnet", described, _list_interfaces(plan), "[]", select, of_interface)
    show = ("az", "network", "vnet", "subnet", "show", "--ids", "@subnet@", *_JSON)
    unfiltered = "nothing to open: Azure filters nothing in a subnet without a group"
    return _cluster_group(plan), subnet, *_group("the subnet", show, "", (), unfiltered)


def _interface_group(plan: Plan) -> tuple[Lookup, ...]:
    """Finds the interface's own group. Azure applies it as well, if there is one."""
    of_interface, unfiltered = (("name", _interface(plan)),), "the interface has none of its own"
    found = _group(_interface(plan), _list_interfaces(plan), "[]", of_interface, unfiltered)
    return _cluster_group(plan), *found


def _group(
    owner: str, argv: tuple[str, ...], items: str, where: tuple[Condition, ...], unfiltered: str
) -> tuple[Lookup, ...]:
    """Finds the ID of a group, and its name and resource group, which are parts of the ID."""
    select, described = "networkSecurityGroup.id", f"the network security group of {owner}"
    skip = Presence.SKIP_IF_MISSING
    return (
        Lookup("group_id", described, argv, items, select, where, presence=skip, if_missing=unfiltered),
        Lookup("group", f"the name of {described}", argv, items, select, where, basename=True),
        Lookup(
            "group_resource_group",
            f"the resource group of {described}",
            argv,
            items,
            select,
            where,
            after="resourceGroups",
        ),
    )


def _cluster_group(plan: Plan) -> Lookup:
    name = _interface(plan)
    described, where = f"the resource group of {name}", (("name", name),)
    return Lookup("resource_group", described, _list_interfaces(plan), "[]", "resourceGroup", where)


def _list_interfaces(plan: Plan) -> tuple[str, ...]:
    group = plan.cloud.resource_group
    return ("az", "network", "nic", "list", *(("--resource-group", group) if group else ()), *_JSON)


def _interface(plan: Plan) -> str:
    return f"{bootstrap_name(plan)}-nic"


def _address(plan: Plan, version: int) -> Lookup:
    where = ("--resource-group", "@resource_group@", "--nic-name", _interface(plan))
    return Lookup(
        "address",
        f"an IPv{version} address on {_interface(plan)}",
        ("az", "network", "nic", "ip-config", "list", *where, "--query", _FIND_ADDRESSES, *_JSON),
        items="[]",
        select="address",
        where=(("version", f"IPv{version}"),),
    )
