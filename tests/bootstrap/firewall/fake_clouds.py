"""Fakes the clouds' CLIs: keeps a small cloud in a file and prints what the real CLIs print.

Run as `python fake_clouds.py PROGRAM ARGUMENTS…`; the cloud is the JSON file $CLOUD. It rejects unknown
commands, so that a wrong flag or verb fails the test. It imports little: a test runs it dozens of times.
"""

import json
import os
import sys

CLUSTER = "c1-x7k2p"
BOOTSTRAP = f"{CLUSTER}-bootstrap"


def empty_cloud() -> dict:
    """Returns a cluster as the installer leaves it, with the installer's own groups and rules."""
    return {
        "aws": {
            "groups": {
                "sg-0a": {"name": f"{CLUSTER}-controlplane", "rules": []},
                "sg-0b": {"name": f"{CLUSTER}-node", "rules": []},
            },
            "interface": ["sg-0a"],
        },
        "azure": {"rules": {"apiserver_in": {"priority": "101"}}},
        "gcp": {"rules": {f"{CLUSTER}-api": {}}, "tags": [f"{CLUSTER}-control-plane"]},
        "ibm": {
            "groups": {
                "r010-a": {"name": f"{CLUSTER}-sg-cluster-wide", "rules": {}, "targets": []},
                "r010-b": {
                    "name": f"{CLUSTER}-sg-control-plane",
                    # The installer's rule, which a removal must not delete.
                    "rules": {"r-1": ["inbound", "tcp", 8091, {"cidr_block": "0.0.0.0/0"}]},
                    "targets": [],
                },
            }
        },
        "openstack": {
            "groups": {"11aa": {"name": f"{CLUSTER}-master", "rules": []}},
            "server": [f"{CLUSTER}-master"],
        },
    }


class CliError(Exception):
    """Holds what the CLI prints on stderr before it exits with an error."""


def take(arguments: list, *flags: str) -> dict:
    """Returns the values of these flags. Raises if one is missing or another one is given."""
    found: dict = {}
    flag = ""
    for word in arguments:
        if word.startswith("-") and word != "-1":
            flag = word
            if flag not in flags:
                raise CliError(f"unrecognized arguments: {flag}")
            found[flag] = []
        else:
            found[flag].append(word)
    if set(found) != set(flags):
        raise CliError(f"missing: {set(flags) - set(found)}")
    return found


def fresh(taken: dict, prefix: str) -> str:
    return f"{prefix}{len(taken) + 100}"


# --- AWS


def aws(cloud: dict, words: list) -> object:
    if words[0] != "ec2":
        raise CliError("Invalid choice")
    return getattr(Ec2(cloud["aws"]), words[1].replace("-", "_"))(words[2:])


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
        return {"Reservations": [{"Instances": [{"VpcId": "vpc-1", "NetworkInterfaces": interfaces}]}]}

    def describe_security_groups(self, words: list) -> object:
        name = take(words, "--filters", "--output")["--filters"][0].removeprefix("Name=group-name,Values=")
        found = [{"GroupId": key, "GroupName": name} for key, g in self.groups.items() if g["name"] == name]
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


def az(cloud: dict, words: list) -> object:
    state = cloud["azure"]
    if words[:3] == ["network", "nsg", "list"]:
        names = [] if state["rules"] is None else [f"{CLUSTER}-nsg", "another-nsg"]
        return [{"name": name, "resourceGroup": f"{CLUSTER}-rg"} for name in names]
    if words[:4] == ["network", "nic", "ip-config", "list"]:
        flags = take(words[4:], "--resource-group", "--nic-name", "--query", "--output")
        assert flags["--nic-name"] == [f"{BOOTSTRAP}-nic"]
        return [{"version": "IPv4", "address": "10.0.0.9"}, {"version": "IPv6", "address": "fd00::9"}]
    assert words[:3] == ["network", "nsg", "rule"], words
    place = ("--resource-group", "--nsg-name", "--name")
    if words[3] == "delete":
        state["rules"].pop(take(words[4:], *place)["--name"][0], None)
        return None
    rule = take(words[4:], *place, *AZURE_RULE)
    name = rule["--name"][0]
    if any(o["priority"] == rule["--priority"][0] for n, o in state["rules"].items() if n != name):
        raise CliError("(SecurityRuleConflict) Security rule conflicts with rule")
    sources = rule["--source-address-prefixes"]
    if len({":" in prefix for prefix in (*sources, *rule["--destination-address-prefixes"])}) > 1:
        raise CliError("(SecurityRuleInvalidAddressPrefix) IPv4 and IPv6 cannot be mixed")
    state["rules"][name] = {"priority": rule["--priority"][0], "from": sources}
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
    if words[1:3] == ["instances", "list"]:
        url = "https://www.googleapis.com/compute/v1/projects/p"
        interfaces = [{"network": f"{url}/global/networks/{CLUSTER}-network"}]
        there = {"name": BOOTSTRAP, "zone": f"{url}/zones/us-c1-a", "networkInterfaces": interfaces}
        return [] if state["tags"] is None else [there]
    if words[1] == "instances":
        flags = take(words[4:], "--zone", "--tags", "--quiet")
        assert (words[3], flags["--zone"]) == (BOOTSTRAP, ["us-c1-a"]), words
        others = [tag for tag in state["tags"] if tag not in flags["--tags"]]
        state["tags"] = {"add-tags": others + flags["--tags"], "remove-tags": others}[words[2]]
        return None
    name = words[3]
    resource = f"The resource 'projects/p/global/firewalls/{name}'"
    if words[2] == "delete":
        take(words[4:], "--quiet")
        if name not in state["rules"]:
            raise CliError(f"ERROR: (gcloud.compute.firewall-rules.delete) {resource} was not found")
        del state["rules"][name]
        return None
    flags = take(words[4:], *GCP_RULE)
    if name in state["rules"]:
        raise CliError(f"ERROR: (gcloud.compute.firewall-rules.create) {resource} already exists")
    state["rules"][name] = flags
    return []


GCP_RULE = (
    *("--network", "--direction", "--allow", "--source-tags", "--target-tags"),
    *("--description", "--quiet", "--format"),
)


# --- IBM Cloud and PowerVS


def ibmcloud(cloud: dict, words: list) -> object:
    assert words[0] == "is", words
    return getattr(Vpc(cloud["ibm"]["groups"]), words[1].replace("-", "_"))(words[2:])


class Vpc:
    def __init__(self, groups: dict) -> None:
        self.groups = groups

    def instances(self, words: list) -> object:
        take(words, "--output")
        return [{"name": BOOTSTRAP, "vpc": {"id": "r010-v"}, "primary_network_interface": {"id": "nic-1"}}]

    def security_groups(self, words: list) -> object:
        take(words, "--output")
        return [{"id": key, "name": group["name"]} for key, group in self.groups.items()]

    def security_group_create(self, words: list) -> object:
        assert words[1] == "r010-v"
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
