"""Fakes the clouds' CLIs: keeps a small cloud in a file and prints what the real CLIs print.

Run as `python fake_clouds.py PROGRAM ARGUMENTS…`; the cloud is the JSON file $CLOUD. It rejects unknown
commands, so that a wrong flag or verb fails the test. It imports little: a test runs it dozens of times.

Whose behaviour it copies: aws of awscli 1.46, az of azure-cli 2.91, openstack of python-openstackclient 10.5,
gcloud of 528.0; their parsers are run by test_cloud_parsers.py. ibmcloud of the VPC plugin's documentation.
Errors of the services themselves are those that their APIs document.

`cloud["faults"]` makes commands fail: {"words in the command": "what the CLI prints on stderr"}.
"""

import json
import os
import sys

CLUSTER = "c1-x7k2p"
BOOTSTRAP = f"{CLUSTER}-bootstrap"


def empty_cloud() -> dict:
    """Returns a cluster as the installer leaves it, with the installer's own groups and rules."""
    return {
        "faults": {},
        "aws": {
            "region": "eu-west-1",
            "groups": {
                "sg-0a": {"name": f"{CLUSTER}-controlplane", "tag": f"{CLUSTER}-controlplane", "rules": []},
                "sg-0b": {"name": f"{CLUSTER}-node", "tag": f"{CLUSTER}-node", "rules": []},
            },
            "interface": ["sg-0a"],
        },
        # The group of the subnet, as the installer of a new VNet leaves it.
        "azure": {
            "cloud": "AzureCloud",
            "subnet_group": f"{CLUSTER}-nsg",
            "interface_group": None,
            "groups": {
                f"{CLUSTER}-nsg": {
                    "resource_group": f"{CLUSTER}-rg",
                    "rules": {"apiserver_in": {"priority": "101"}},
                },
                "another-nsg": {"resource_group": "another-rg", "rules": {}},
            },
        },
        # The VPC is in the machines' project; with a shared VPC in another one.
        "gcp": {
            "default_project": "p1",
            "project": "p1",
            "network_project": "p1",
            "rules": {"p1": {f"{CLUSTER}-api": {}}, "p2": {}},
            "tags": [f"{CLUSTER}-control-plane"],
        },
        "ibm": {
            "region": "eu-de",
            "groups": {
                "r010-a": {"name": f"{CLUSTER}-sg-cluster-wide", "rules": {}, "targets": []},
                "r010-b": {
                    "name": f"{CLUSTER}-sg-control-plane",
                    # The installer's rule, which a removal must not delete.
                    "rules": {"r-1": ["inbound", "tcp", 8091, {"cidr_block": "0.0.0.0/0"}]},
                    "targets": [],
                },
            },
        },
        "openstack": {
            "groups": {"11aa": {"name": f"{CLUSTER}-master", "rules": []}},
            "server": [f"{CLUSTER}-master"],
        },
    }


class CliError(Exception):
    """Holds what the CLI prints on stderr before it exits with an error."""


def take(arguments: list, *flags: str, optional: tuple = ()) -> dict:
    """Returns the values of these flags. Raises if one is missing or another one is given."""
    found: dict = {}
    flag = ""
    for word in arguments:
        if word.startswith("-") and word != "-1":
            flag = word
            if flag not in (*flags, *optional):
                raise CliError(f"unrecognized arguments: {flag}")
            found[flag] = []
        else:
            found[flag].append(word)
    if set(flags) - set(found):
        raise CliError(f"missing: {set(flags) - set(found)}")
    return found


def fresh(taken: dict, prefix: str) -> str:
    return f"{prefix}{len(taken) + 100}"


# --- AWS


def aws(cloud: dict, words: list) -> object:
    if words[0] != "ec2":
        raise CliError("Invalid choice")
    state = cloud["aws"]
    if "--region" in words:
        at = words.index("--region")
        region, words = words[at + 1], [*words[:at], *words[at + 2 :]]
        if region != state["region"]:  # another region is another cloud
            state = {"region": region, "groups": {}, "interface": None}
    return getattr(Ec2(state), words[1].replace("-", "_"))(words[2:])


class Ec2:
    def __init__(self, state: dict) -> None:
        self.groups = state["groups"]
        self.state = state

    def describe_instances(self, words: list) -> object:
        wanted = take(words, "--filters", "--output")["--filters"]
        if wanted[0] != f"Name=tag:Name,Values={BOOTSTRAP}" or self.state["interface"] is None:
            return {"Reservations": []}
        interfaces = [
            {"NetworkInterfaceId": "eni-1", "Attachment": {"DeviceIndex": 1}},
            {"NetworkInterfaceId": "eni-0", "Attachment": {"DeviceIndex": 0}},
        ]
        placed = {"Placement": {"AvailabilityZone": f"{self.state['region']}a"}}
        found = {"VpcId": "vpc-1", "NetworkInterfaces": interfaces, **placed}
        return {"Reservations": [{"Instances": [found]}]}

    def describe_availability_zones(self, words: list) -> object:
        (zone,) = take(words, "--zone-names", "--output")["--zone-names"]
        return {"AvailabilityZones": [{"ZoneName": zone, "RegionName": zone[:-1]}]}

    def describe_security_groups(self, words: list) -> object:
        (wanted,) = take(words, "--filters", "--output")["--filters"]
        field, _, values = wanted.partition(",Values=")
        key = {"Name=group-name": "name", "Name=tag:Name": "tag"}[field]
        found = [
            {"GroupId": group_id, "GroupName": group["name"]}
            for group_id, group in self.groups.items()
            if group.get(key) in values.split(",")
        ]
        return {"SecurityGroups": found}

    def describe_network_interfaces(self, words: list) -> object:
        attached = self.state["interface"]
        if words[0] == "--filters":
            group = take(words, "--filters", "--output")["--filters"][0].removeprefix("Name=group-id,Values=")
            there = attached is not None and group in attached
        else:
            there = take(words, "--network-interface-ids", "--output")["--network-interface-ids"] == ["eni-0"]
        if not there:
            return {"NetworkInterfaces": []}
        groups = [{"GroupId": key, "GroupName": self.groups[key]["name"]} for key in attached]
        return {"NetworkInterfaces": [{"NetworkInterfaceId": "eni-0", "Groups": groups}]}

    def modify_network_interface_attribute(self, words: list) -> object:
        flags = take(words, "--network-interface-id", "--groups")
        if flags["--network-interface-id"] != ["eni-0"] or not flags["--groups"]:
            raise CliError("An error occurred (InvalidNetworkInterfaceID.NotFound)")
        self.state["interface"] = flags["--groups"]
        return None

    def create_security_group(self, words: list) -> object:
        body = self._body(words)
        if any(group["name"] == body["GroupName"] for group in self.groups.values()):
            raise CliError("An error occurred (InvalidGroup.Duplicate) when calling the operation")
        key = fresh(self.groups, "sg-")
        assert body["VpcId"] == "vpc-1"
        self.groups[key] = {"name": body["GroupName"], "rules": []}
        return {"GroupId": key}

    def authorize_security_group_ingress(self, words: list) -> object:
        group, rule = self._rule(words)
        if rule in group["rules"]:
            raise CliError("An error occurred (InvalidPermission.Duplicate) when calling the operation")
        group["rules"].append(rule)
        return {"Return": True}

    def revoke_security_group_ingress(self, words: list) -> object:
        group, rule = self._rule(words)
        if rule not in group["rules"]:
            raise CliError("An error occurred (InvalidPermission.NotFound) when calling the operation")
        group["rules"].remove(rule)
        return {"Return": True}

    def delete_security_group(self, words: list) -> object:
        key = self._body(words)["GroupId"]
        if key in (self.state["interface"] or ()):
            raise CliError("An error occurred (DependencyViolation) when calling the operation")
        del self.groups[key]
        return None

    def _body(self, words: list) -> dict:
        return json.loads(take(words, "--cli-input-json", "--output")["--cli-input-json"][0])

    def _rule(self, words: list) -> tuple:
        body = self._body(words)
        (permission,) = body["IpPermissions"]
        (pair,) = permission["UserIdGroupPairs"]
        assert pair["GroupId"] in self.groups
        return self.groups[body["GroupId"]], [permission["FromPort"], permission["ToPort"], pair["GroupId"]]


# --- Azure


AZURE = "/subscriptions/0f1e/resourceGroups"


def az(cloud: dict, words: list) -> object:
    state = cloud["azure"]
    network = "providers/Microsoft.Network"

    def group_id(name: str) -> str:
        # Azure does not keep the case of this word.
        resource_group = state["groups"][name]["resource_group"]
        return f"{AZURE.lower()}/{resource_group}/{network}/networkSecurityGroups/{name}"

    def reference(name: str) -> object:
        return {"id": group_id(name)} if name else None

    if words[:2] == ["cloud", "show"]:
        return {"name": state["cloud"], "isActive": True}
    if words[:3] == ["network", "nic", "list"]:
        take(words[3:], "--output", optional=("--resource-group",))
        subnet = {"subnet": {"id": f"{AZURE}/vnet-rg/{network}/virtualNetworks/v1/subnets/masters"}}
        own = {
            "name": f"{BOOTSTRAP}-nic",
            "resourceGroup": f"{CLUSTER}-rg",
            "ipConfigurations": [subnet, subnet],
        }
        other = {"name": "other-nic", "resourceGroup": "another-rg", "ipConfigurations": []}
        return [other, own | {"networkSecurityGroup": reference(state["interface_group"])}]
    if words[:4] == ["network", "vnet", "subnet", "show"]:
        assert take(words[4:], "--ids", "--output")["--ids"][0].endswith(
            "/virtualNetworks/v1/subnets/masters"
        )
        return {"name": "masters", "networkSecurityGroup": reference(state["subnet_group"])}
    if words[:3] == ["network", "nsg", "list"]:
        return [
            {
                "name": name,
                "securityRules": [
                    {"name": r, "id": f"{group_id(name)}/securityRules/{r}"} for r in g["rules"]
                ],
            }
            for name, g in state["groups"].items()
        ]
    if words[:4] == ["network", "nic", "ip-config", "list"]:
        flags = take(words[4:], "--resource-group", "--nic-name", "--query", "--output")
        assert (flags["--nic-name"], flags["--resource-group"]) == ([f"{BOOTSTRAP}-nic"], [f"{CLUSTER}-rg"])
        return [{"version": "IPv4", "address": "10.0.0.9"}, {"version": "IPv6", "address": "fd00::9"}]
    assert words[:3] == ["network", "nsg", "rule"], words
    if words[3] == "delete":
        for rule_id in take(words[4:], "--ids")["--ids"]:
            name, _, rule = rule_id.split("/")[-3:]
            state["groups"][name]["rules"].pop(rule)
        return None
    place = ("--resource-group", "--nsg-name", "--name")
    flags = take(words[4:], *place, *AZURE_RULE)
    (name,), (group,) = flags["--name"], flags["--nsg-name"]
    if state["groups"][group]["resource_group"] != flags["--resource-group"][0]:
        raise CliError("(ResourceNotFound) The Resource was not found.")
    rules = state["groups"][group]["rules"]
    if any(o["priority"] == flags["--priority"][0] for n, o in rules.items() if n != name):
        raise CliError("(SecurityRuleConflict) Security rule conflicts with rule")
    sources = flags["--source-address-prefixes"]
    if len({":" in prefix for prefix in (*sources, *flags["--destination-address-prefixes"])}) > 1:
        raise CliError("(SecurityRuleInvalidAddressPrefix) IPv4 and IPv6 cannot be mixed")
    rules[name] = {"priority": flags["--priority"][0], "from": sources}
    return {}


AZURE_RULE = (
    *("--priority", "--direction", "--access", "--protocol", "--source-address-prefixes"),
    *("--source-port-ranges", "--destination-address-prefixes", "--destination-port-ranges"),
    *("--description", "--output"),
)


# --- GCP


def gcloud(cloud: dict, words: list) -> object:
    state = cloud["gcp"]
    assert words[0] == "compute", words
    project = words[words.index("--project") + 1] if "--project" in words else state["default_project"]
    url = "https://www.googleapis.com/compute/v1/projects"
    if words[1:3] == ["instances", "list"]:
        interfaces = [{"network": f"{url}/{state['network_project']}/global/networks/{CLUSTER}-network"}]
        zone = f"{url}/{state['project']}/zones/us-c1-a"
        there = {"name": BOOTSTRAP, "zone": zone, "networkInterfaces": interfaces}
        return [] if state["tags"] is None or project != state["project"] else [there]
    if words[1] == "instances":
        flags = take(words[4:], "--zone", "--tags", "--quiet", optional=("--project",))
        assert (words[3], flags["--zone"], project) == (BOOTSTRAP, ["us-c1-a"], state["project"]), words
        others = [tag for tag in state["tags"] if tag not in flags["--tags"]]
        state["tags"] = {"add-tags": others + flags["--tags"], "remove-tags": others}[words[2]]
        return None
    name, rules = words[3], state["rules"][project]
    resource = f"The resource 'projects/{project}/global/firewalls/{name}'"
    if words[2] == "delete":
        take(words[4:], "--quiet", optional=("--project",))
        if name not in rules:
            raise CliError(f"ERROR: (gcloud.compute.firewall-rules.delete) {resource} was not found")
        del rules[name]
        return None
    flags = take(words[4:], *GCP_RULE)
    if project != state["network_project"]:
        network = f"projects/{project}/global/networks/{CLUSTER}-network"
        raise CliError(
            f"ERROR: (gcloud.compute.firewall-rules.create) The resource '{network}' was not found"
        )
    if name in rules:
        raise CliError(f"ERROR: (gcloud.compute.firewall-rules.create) {resource} already exists")
    rules[name] = flags
    return []


GCP_RULE = (
    *("--network", "--direction", "--allow", "--source-tags", "--target-tags"),
    *("--description", "--project", "--quiet", "--format"),
)


# --- IBM Cloud and PowerVS


def ibmcloud(cloud: dict, words: list) -> object:
    if words[0] == "target":
        take(words[1:], "--output")
        return {"region": {"name": cloud["ibm"]["region"]}, "resource_group": {"name": "default"}}
    assert words[0] == "is", words
    return getattr(Vpc(cloud["ibm"]["groups"]), words[1].replace("-", "_"))(words[2:])


class Vpc:
    def __init__(self, groups: dict) -> None:
        self.groups = groups

    def instances(self, words: list) -> object:
        take(words, "--all-resource-groups", "--output")
        return [{"name": BOOTSTRAP, "vpc": {"id": "r010-v"}, "primary_network_interface": {"id": "nic-1"}}]

    def security_groups(self, words: list) -> object:
        take(words, "--all-resource-groups", "--output")
        return [{"id": key, "name": group["name"]} for key, group in self.groups.items()]

    def security_group_create(self, words: list) -> object:
        assert words[1] == "r010-v"
        take(words[2:], "--output", optional=("--resource-group-name",))
        self.groups[fresh(self.groups, "r010-")] = {"name": words[0], "rules": {}, "targets": []}
        return {}

    def security_group_delete(self, words: list) -> object:
        if self.groups[words[0]]["targets"]:
            raise CliError("Error code: security_group_in_use")
        del self.groups[words[0]]
        return None

    def security_group_rules(self, words: list) -> object:
        return [
            {"id": key, "direction": d, "protocol": p, "port_min": port, "port_max": port, "remote": remote}
            for key, (d, p, port, remote) in self.groups[words[0]]["rules"].items()
        ]

    def security_group_rule_add(self, words: list) -> object:
        group, direction, protocol = words[:3]
        flags = take(words[3:], "--remote", "--port-min", "--port-max", "--output")
        (given,) = flags["--remote"]
        by_group = given in self.groups
        remote = {"id": given, "name": self.groups[given]["name"]} if by_group else {"cidr_block": given}
        rules = self.groups[group]["rules"]
        assert flags["--port-min"] == flags["--port-max"]
        rules[fresh(rules, "r-")] = [direction, protocol, int(flags["--port-min"][0]), remote]
        return {}

    def security_group_rule_delete(self, words: list) -> object:
        del self.groups[words[0]]["rules"][words[1]]
        return None

    def security_group_targets(self, words: list) -> object:
        return [{"id": target} for target in self.groups[words[0]]["targets"]]

    def security_group_target_add(self, words: list) -> object:
        self.groups[words[0]]["targets"].append(words[1])
        return {}

    def security_group_target_remove(self, words: list) -> object:
        self.groups[words[0]]["targets"].remove(words[1])
        return None


# --- OpenStack


def openstack(cloud: dict, words: list) -> object:
    state = cloud["openstack"]
    groups = state["groups"]
    if words[0] == "--os-cloud":
        if words[1] != "mycloud":
            raise CliError(f"Cloud {words[1]} was not found.")
        words = words[2:]
    if words[:2] == ["server", "list"]:
        return [] if state["server"] is None else [{"ID": "5e", "Name": BOOTSTRAP}]
    if words[:3] == ["server", "show", "5e"]:
        return {"security_groups": [{"name": name} for name in state["server"]]}
    if words[0] == "server":
        name = groups[words[5]]["name"]
        if words[1] == "remove" and name not in state["server"]:
            raise CliError(f"Security group {name} not associated with the instance 5e (HTTP 404)")
        getattr(state["server"], {"add": "append", "remove": "remove"}[words[1]])(name)
        return None
    assert words[:2] == ["security", "group"], words
    if words[2] == "list":
        return [{"ID": key, "Name": group["name"]} for key, group in groups.items()]
    if words[2] == "create":
        groups[fresh(groups, "9f")] = {"name": words[3], "rules": []}
        return {}
    if words[2] == "delete":
        if groups[words[3]]["name"] in (state["server"] or ()):
            raise CliError("ConflictException: 409: Client Error, Security Group in use")
        del groups[words[3]]
        return None
    return add_neutron_rule(groups[words[-1]]["rules"], words[4:-1])


def add_neutron_rule(rules: list, words: list) -> object:
    flags = take(words, *NEUTRON_RULE)
    network, family = flags["--remote-ip"][0], flags["--ethertype"][0]
    if (":" in network) != (family == "IPv6"):
        raise CliError("BadRequestException: 400: Conflicting value ethertype for CIDR")
    rule = [network, family, *flags["--dst-port"], *flags["--protocol"]]
    if rule in rules:
        raise CliError(
            "ConflictException: 409: Client Error, Security group rule already exists. Rule id is 1"
        )
    rules.append(rule)
    return {}


NEUTRON_RULE = ("--ingress", "--ethertype", "--protocol", "--dst-port", "--remote-ip", "--description", "-f")

PROGRAMS = {"aws": aws, "az": az, "gcloud": gcloud, "ibmcloud": ibmcloud, "openstack": openstack}


def main() -> int:
    path = os.environ["CLOUD"]
    with open(path) as file:
        cloud = json.load(file)
    try:
        for part, fault in cloud["faults"].items():
            if part in " ".join(sys.argv[1:]):
                raise CliError(fault)
        answer = PROGRAMS[sys.argv[1]](cloud, sys.argv[2:])
    except CliError as error:
        print(error, file=sys.stderr)
        return 254
    with open(path, "w") as file:
        json.dump(cloud, file)
    # The real CLIs print warnings on stderr, which must not be parsed as output.
    print("WARNING: a newer version is available", file=sys.stderr)
    if answer is not None:
        json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
