"""Checks the firewall actions of every cloud: removal names what creation named, never all addresses."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.bootstrap import firewall
from bootbridge.bootstrap.firewall import installer_names
from bootbridge.bootstrap.firewall.json_query import jq_filter, select_values
from bootbridge.bootstrap.firewall.model import Lookup
from bootbridge.bootstrap.firewall.providers import MANAGED
from bootbridge.bootstrap.plan.cloud import CloudSettings
from bootbridge.bootstrap.plan.plan import IPNetwork, Networking, Plan, Platform
from bootbridge.bootstrap.plan.ports import Ports
from bootbridge.cli.main import main
from bootbridge.errors import OperatorError
from tests.support.not_run import needs_program

INFRA_ID = "c1-x7k2p"
NAME = f"{INFRA_ID}-bootstrap-konnectivity"
UNMANAGED = tuple(platform for platform in Platform if platform not in MANAGED)
V4, V6 = ip_network("10.0.0.0/16"), ip_network("fd00:1::/48")

needs_shellcheck = needs_program("shellcheck")
needs_jq = needs_program("jq")


def plan_on(platform: Platform, *networks: IPNetwork, **fields: Any) -> Plan:
    fields = {"infra_id": INFRA_ID, "networks": Networking(machine=networks or (V4,))} | fields
    return Plan(platform=platform, **fields)


def rule_names(actions: list[firewall.FirewallAction]) -> set[str]:
    return {action.rule for action in actions}


def bodies(actions: list[firewall.FirewallAction]) -> list[Any]:
    return [action.body for action in actions if action.body]


def leaves(value: object) -> Iterator[str]:
    """Yields every text in a document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            yield from leaves(entry)
    else:
        yield str(value)


def networks_in(action: firewall.FirewallAction) -> set[IPNetwork]:
    found: set[IPNetwork] = set()
    for text in (*action.argv, *leaves(action.body)):
        try:
            found.add(ip_network(text))
        except ValueError:
            continue
    return found


v4_networks = st.builds(
    lambda address, prefix: IPv4Network((address, prefix), strict=False),
    st.integers(0, 2**32 - 1),
    st.integers(0, 32),
)
v6_networks = st.builds(
    lambda address, prefix: IPv6Network((address, prefix), strict=False),
    st.integers(0, 2**128 - 1),
    st.integers(0, 128),
)
plans = st.builds(
    Plan,
    platform=st.sampled_from(Platform),
    infra_id=st.from_regex(r"[a-z0-9]([a-z0-9-]{0,45}[a-z0-9])?", fullmatch=True),
    networks=st.builds(
        Networking, machine=st.lists(v4_networks | v6_networks, min_size=1, max_size=4).map(tuple)
    ),
    user_provisioned=st.booleans(),
    ports=st.builds(Ports, agent=st.integers(1024, 49151)),
)


@given(plans)
def test_created_rules_are_the_removed_rules(plan: Plan) -> None:
    """`create`, `remove` and `rules` name the same rules, or all reject the plan."""
    try:
        created = rule_names(firewall.create(plan))
    except OperatorError:
        with pytest.raises(OperatorError):
            firewall.remove(plan)
        return
    assert created == rule_names(firewall.remove(plan))
    if firewall.is_managed(plan):
        assert created == {rule.name for rule in firewall.rules(plan)} != set()
        assert all(name.startswith(plan.infra_id) for name in created)


@given(plans)
def test_the_source_is_never_all_addresses(plan: Plan) -> None:
    """Neither as one network, nor as several that add up, nor by a keyword of the cloud."""
    try:
        actions, rules = firewall.create(plan), firewall.rules(plan)
    except OperatorError:
        return
    named = set().union(*(networks_in(action) for action in actions)) if actions else set()
    named |= {ip_network(source) for rule in rules for source in rule.sources if source[0] in "0123456789:"}
    for version in (4, 6):
        family = [network for network in named if network.version == version]
        assert all(network.prefixlen for network in ipaddress.collapse_addresses(family))
    assert all(rule.sources for rule in rules)
    words = {word for rule in rules for source in rule.sources for word in (source, source.lower())}
    assert not words & {"*", "any", "internet", "0.0.0.0/0", "::/0"}


@pytest.mark.parametrize("platform", Platform)
@pytest.mark.parametrize(
    "networks",
    [
        (ip_network("0.0.0.0/0"),),
        (ip_network("::/0"),),
        (V4, ip_network("::/0")),
        (ip_network("0.0.0.0/1"), ip_network("128.0.0.0/1")),
    ],
)
def test_machine_networks_that_contain_all_addresses_are_rejected(
    platform: Platform, networks: tuple[IPNetwork, ...]
) -> None:
    """Also where groups are the source, and where the operator manages the firewall."""
    with pytest.raises(OperatorError, match=r"networking.machineNetwork: .*/0 contains all addresses"):
        firewall.render_files(plan_on(platform, *networks))


@pytest.mark.parametrize("platform", MANAGED)
def test_a_missing_infra_id_is_rejected(platform: Platform) -> None:
    """Rules are named after it."""
    for of in (firewall.create, firewall.remove, firewall.rules):
        with pytest.raises(OperatorError, match=r"--infra-id: .*metadata.json"):
            of(replace(plan_on(platform), infra_id=""))


@pytest.mark.parametrize("platform", MANAGED)
def test_files_rendered_without_an_infra_id_explain_how_to_create_the_rule(
    platform: Platform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`render` must work before the installer runs; `firewall create` fails and writes nothing."""
    tree = firewall.render_files(replace(plan_on(platform), infra_id=""))
    page = tree["firewall/open-port.txt"].data.decode()
    assert f"bootbridge firewall create --platform {platform} --infra-id INFRA_ID --apply" in page
    assert json.loads(tree["firewall/open-port.json"].data)["managedBy"] == "bootbridge"
    assert main(["firewall", "create", f"--platform={platform}", f"--output={tmp_path}"]) == 1
    assert "--infra-id" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("infra_id", ["a" * 41, "1cluster"])
def test_an_infra_id_that_gives_an_invalid_rule_name_is_rejected(infra_id: str) -> None:
    """Clouds require at most 63 characters and a letter first. A truncated name could be ambiguous."""
    with pytest.raises(OperatorError, match=r"--infra-id: .*at most 40 characters"):
        firewall.create(plan_on(Platform.GCP, infra_id=infra_id))


def test_an_unknown_platform_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, which lists the known ones."""
    assert main(["firewall", "create", "--platform=moon"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--platform" in error
    assert "vsphere" in error


# --- names of the installer's groups


@pytest.mark.parametrize(
    ("release", "platform", "expected"),
    [
        ("", Platform.AWS, ["controlplane or X-master-sg", "node or X-worker-sg"]),
        ("4.14", Platform.AWS, ["master-sg", "worker-sg"]),
        ("4.15.12", Platform.AWS, ["master-sg", "worker-sg"]),
        ("4.16.0-rc.1", Platform.AWS, ["controlplane", "node"]),
        ("5.0", Platform.AWS, ["controlplane", "node"]),
        ("4.16", Platform.GCP, ["master", "worker"]),
        ("4.17", Platform.GCP, ["control-plane", "worker"]),
    ],
)
def test_source_groups_have_the_names_of_the_release(
    release: str, platform: Platform, expected: list[str]
) -> None:
    """Without a release, each group may have any of its names."""
    plan = plan_on(platform, cloud=CloudSettings(release=release))
    (rule,) = firewall.rules(plan)
    assert [source.split(f" {INFRA_ID}-", 1)[1].replace(INFRA_ID, "X") for source in rule.sources] == expected


@pytest.mark.parametrize(
    ("release", "group"),
    [
        ("4.14", "ocp-sec-group"),
        ("4.16", "ocp-sec-group"),
        ("4.17", ""),
        ("4.20", ""),
        ("4.21", "sg-control-plane"),
        ("", "sg-control-plane or X-ocp-sec-group"),
    ],
)
def test_powervs_has_a_group_in_some_releases(release: str, group: str) -> None:
    """In the others the operator is told what to open."""
    plan = plan_on(Platform.POWERVS, cloud=CloudSettings(release=release))
    assert firewall.is_managed(plan) == bool(group)
    (rule,) = firewall.rules(plan)
    if group:
        assert rule.target == f"security group {INFRA_ID}-{group.replace('X', INFRA_ID)}"
    else:
        page = firewall.render_files(plan)["firewall/open-port.txt"].data.decode()
        assert f"the installer of {release} creates no security group" in page


# --- each cloud


def test_aws_opens_the_port_in_a_separate_group() -> None:
    """To the cluster's two groups, which are not changed. The same permission is revoked."""
    permits = [body for body in bodies(firewall.create(plan_on(Platform.AWS))) if "IpPermissions" in body]
    revokes = [body for body in bodies(firewall.remove(plan_on(Platform.AWS))) if "IpPermissions" in body]
    for permit, revoke in zip(permits, revokes, strict=True):
        (permission,) = permit["IpPermissions"]
        assert {k: permission[k] for k in ("IpProtocol", "FromPort", "ToPort")} == {
            "IpProtocol": "tcp",
            "FromPort": 8091,
            "ToPort": 8091,
        }
        assert permission["UserIdGroupPairs"][0].pop("Description")
        assert permit == revoke
    argv = [action.argv[2] for action in firewall.create(plan_on(Platform.AWS))]
    assert argv[0] == "create-security-group"
    assert argv[1:3] == ["authorize-security-group-ingress"] * 2
    assert argv[3] == "modify-network-interface-attribute"


@pytest.mark.parametrize("platform", [Platform.AWS])
def test_the_command_sends_the_body_of_the_api_request(platform: Platform) -> None:
    """A caller of the API can use the body instead of the command."""
    for action in firewall.create(plan_on(platform)):
        if "--cli-input-json" in action.argv:
            assert json.loads(action.argv[action.argv.index("--cli-input-json") + 1]) == action.body


def test_azure_has_a_rule_per_ip_version_and_group() -> None:
    """A rule cannot mix IP versions, and priorities must differ. The removal uses the same names."""
    plan = plan_on(Platform.AZURE, V4, V6, ip_network("10.1.0.0/16"), node_ips=(ip_address("10.0.0.5"),))
    created, removed = firewall.create(plan), firewall.remove(plan)
    assert [action.rule for action in created] == [f"{NAME}-v4"] * 2 + [f"{NAME}-v6"] * 2
    assert [action.rule for action in removed] == [f"{NAME}-v4", f"{NAME}-v6"]
    owners = ["subnet's group", "interface's group"] * 2
    assert all(owner in action.description for owner, action in zip(owners, created, strict=True))
    first, same, second, _ = (body["properties"] for body in bodies(created))
    assert first == same
    assert first["sourceAddressPrefixes"] == ["10.0.0.0/16", "10.1.0.0/16"]
    assert second["sourceAddressPrefixes"] == ["fd00:1::/48"]
    assert (first["destinationAddressPrefix"], second["destinationAddressPrefix"]) == (
        "10.0.0.5",
        "@address@",
    )
    assert (first["destinationPortRange"], first["protocol"], first["access"]) == ("8091", "Tcp", "Allow")
    assert first["priority"] != second["priority"]


def test_gcp_has_one_rule_between_tags() -> None:
    """Tags apply to both IP versions: one rule, no ranges."""
    (body,) = bodies(firewall.create(plan_on(Platform.GCP, V4, V6)))
    assert body["sourceTags"] == [f"{INFRA_ID}-{role}" for role in ("control-plane", "master", "worker")]
    assert body["targetTags"] == [body["name"]] == [NAME]
    assert body["allowed"] == [{"IPProtocol": "tcp", "ports": ["8091"]}]
    assert (body["direction"], "sourceRanges" in body) == ("INGRESS", False)


def test_ibm_cloud_allows_the_cluster_wide_group() -> None:
    """By the group's ID, which is looked up by name."""
    group, rule = bodies(firewall.create(plan_on(Platform.IBMCLOUD)))
    assert group["name"] == NAME
    assert rule["remote"] == {"id": "@remote@"}
    assert (rule["direction"], rule["protocol"], rule["port_min"], rule["port_max"]) == (
        "inbound",
        "tcp",
        8091,
        8091,
    )


def test_powervs_allows_the_machine_networks_and_rejects_ipv6() -> None:
    """IBM's VPC supports IPv4 only. A network left out silently would break the tunnel later."""
    second = ip_network("192.168.7.0/24")
    remotes = [body["remote"] for body in bodies(firewall.create(plan_on(Platform.POWERVS, V4, second)))]
    assert remotes == [{"cidr_block": "10.0.0.0/16"}, {"cidr_block": "192.168.7.0/24"}]
    with pytest.raises(OperatorError, match=r"networking.machineNetwork: IPv6 is not supported"):
        firewall.create(plan_on(Platform.POWERVS, V4, V6))


def test_openstack_has_a_rule_per_network_with_its_ethertype() -> None:
    """Neutron rejects a prefix of the other IP version."""
    rules = bodies(firewall.create(plan_on(Platform.OPENSTACK, V4, V6)))[1:3]
    found = [(r["ethertype"], r["remote_ip_prefix"]) for r in (rule["security_group_rule"] for rule in rules)]
    assert found == [("IPv4", "10.0.0.0/16"), ("IPv6", "fd00:1::/48")]


@pytest.mark.parametrize("platform", MANAGED)
def test_the_port_comes_from_the_plan(platform: Platform) -> None:
    """In the body and in the command."""
    text = json.dumps([[a.argv, a.body] for a in firewall.create(plan_on(platform, ports=Ports(agent=9191)))])
    assert "9191" in text
    assert "8091" not in text


# --- platforms whose firewall the operator manages


@pytest.mark.parametrize("platform", [*UNMANAGED, Platform.AWS])
def test_instructions_for_the_operator(platform: Platform) -> None:
    """Contain port, sources, target, lifetime and a test command, as text and as JSON."""
    plan = plan_on(platform, V4, V6, infra_id="", user_provisioned=True, node_ips=(ip_address("10.0.0.5"),))
    assert firewall.create(plan) == firewall.remove(plan) == []
    tree = firewall.render_files(plan)
    assert set(tree) == {"firewall/open-port.json", "firewall/open-port.txt"}
    page, data = (
        tree["firewall/open-port.txt"].data.decode(),
        json.loads(tree["firewall/open-port.json"].data),
    )
    for text in (
        "TCP",
        "8091",
        "10.0.0.0/16, fd00:1::/48",
        "the bootstrap node (10.0.0.5)",
        data["lifetime"],
    ):
        assert text in page
    assert "bootbridge doctor --from-node 10.0.0.5" in page
    assert (data["port"], data["sources"]) == (8091, ["10.0.0.0/16", "fd00:1::/48"])


@pytest.mark.parametrize("platform", UNMANAGED)
def test_other_platforms_are_unmanaged(platform: Platform) -> None:
    """Also without --user-provisioned."""
    assert not firewall.is_managed(plan_on(platform))


# --- files and commands


@needs_shellcheck
@pytest.mark.parametrize("platform", MANAGED)
def test_shellcheck_accepts_the_scripts(platform: Platform, tmp_path: Path) -> None:
    """As POSIX sh, with all warnings."""
    words = [f"--platform={platform}", f"--infra-id={INFRA_ID}", f"--output={tmp_path}"]
    assert main(["firewall", "show", *words]) == 0
    scripts = sorted((tmp_path / "firewall").glob("*.sh"))
    assert [path.name for path in scripts] == ["create.sh", "remove.sh"]
    assert all(path.stat().st_mode & 0o777 == 0o755 for path in scripts)
    done = subprocess.run(["shellcheck", "--shell=sh", *scripts], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("platform", MANAGED)
def test_json_contains_every_command(platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints what the files contain."""
    plan = plan_on(platform)
    for direction, actions in (("create", firewall.create(plan)), ("remove", firewall.remove(plan))):
        assert (
            main(["firewall", direction, f"--platform={platform}", f"--infra-id={INFRA_ID}", "--json"]) == 0
        )
        printed = capsys.readouterr().out
        assert printed.encode() == firewall.render_files(plan)[f"firewall/{direction}.json"].data
        assert [a["command"] for a in json.loads(printed)["actions"]] == [list(a.argv) for a in actions]


@pytest.mark.parametrize("platform", MANAGED)
def test_show_prints_rule_port_source_target_and_removal(
    platform: Platform, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a table, and as JSON."""
    assert main(["firewall", "show", f"--platform={platform}", f"--infra-id={INFRA_ID}"]) == 0
    printed = capsys.readouterr().out
    for row in ("rule", "port", "from", "to", "removal"):
        assert f"\n{row} " in f"\n{printed}"
    assert NAME in printed
    assert main(["firewall", "show", f"--platform={platform}", f"--infra-id={INFRA_ID}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {rule["name"] for rule in shown["rules"]} == rule_names(firewall.create(plan_on(platform)))
    assert "actions" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "--platform=aws", "--infra-id=c1", "--apply"], "unrecognized arguments: --apply"),
        (["create", "--platform=vsphere", "--apply"], "--apply: not supported on platform vsphere: neither"),
        (["create", "--platform=aws", "--infra-id=c1", "--release=new"], "--release: invalid release 'new'"),
        (["remove", "--record=/none/x.json"], "--record: cannot read /none/x.json"),
        (["create", "--platform=aws", "--infra-id=c1", "--output=/proc/x"], "cannot write /proc/x"),
        (["shut"], "unknown command 'shut'"),
    ],
)
def test_errors_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 1 and the flag or file as subject."""
    assert main(["firewall", *words]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# --- selecting IDs from JSON

LOOKUPS = [
    Lookup("x", "x", ("x",), "Reservations[].Instances[]", "VpcId"),
    Lookup("x", "x", ("x",), "[]", "id", where=(("name", "a"), ("port", 8091))),
    Lookup("x", "x", ("x",), "[].groups[]", "id", excluding=(("name", "a"),)),
    Lookup("x", "x", ("x",), "[]", "zone", basename=True),
    Lookup("x", "x", ("x",), "[]", "remote.name", where=(("remote.cidr", "10.0.0.0/8"),)),
    Lookup("x", "x", ("x",), "[]", "id", where=(("name", ("a", "b")),)),
    Lookup("x", "x", ("x",), "[].groups[]", "id", where=(("name", "b"),)),
    Lookup("x", "x", ("x",), "[]", "zone", after="Zones"),
    Lookup("x", "x", ("x",), "", "Name", where=(("Name", "a"),)),
]
ANSWERS: list[Any] = [
    {"Reservations": [{"Instances": [{"VpcId": "vpc-1"}, {"VpcId": "vpc-2"}]}, {"Instances": []}]},
    [{"name": "a", "port": 8091, "id": "1"}, {"name": "a", "port": 22, "id": "2"}, {"name": "b", "id": "3"}],
    [{"groups": [{"name": "a", "id": "1"}, {"name": "b", "id": "2"}]}, {"groups": None}],
    [{"zone": "https://host/zones/us-c1-a"}, {"zone": None}],
    [{"remote": {"cidr": "10.0.0.0/8", "name": "n"}}, {"remote": None}, {}],
    [{"name": "b", "id": "7"}, {"name": "c", "id": "8"}],
    {"Name": "a"},
    {"Name": "b"},
    [],
    {},
    None,
]


@needs_jq
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_jq_filter_and_python_select_the_same_values(lookup: Lookup) -> None:
    """For output of every shape."""
    for answer in ANSWERS:
        text = json.dumps(answer)
        done = subprocess.run(["jq", "-r", jq_filter(lookup)], input=text, capture_output=True, text=True)
        ours = select_values(lookup, text)
        if done.returncode == 0:
            assert done.stdout.split() == ours, text
        else:  # jq rejects output of the wrong shape; Python finds nothing in it
            assert ours == [], text


def test_the_documentation_has_the_names_of_every_release() -> None:
    """docs/install.md lists what installer_names has, with the releases where names change."""
    page = (Path(__file__).parents[3] / "docs/install.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| ") and line.count("|") == 4]
    for role, table in installer_names.TABLES.items():
        for platform, names in table.items():
            name = {"aws": "AWS", "gcp": "GCP", "ibmcloud": "IBM Cloud", "powervs": "PowerVS"}[platform]
            (line,) = [line for line in lines if line.startswith(f"| {name} | {role} |")]
            for each in names:
                assert f"`{each.suffix}`" in line
                assert each.until == (99, 0) or f"until 4.{each.until[1]} `{each.suffix}`" in line
                assert each.since == (4, 0) or f"since 4.{each.since[1]} `{each.suffix}`" in line
