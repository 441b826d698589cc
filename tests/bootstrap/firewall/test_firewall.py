"""The firewall's promises on paper: one name for both ways, never the world, each cloud's own artefact."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
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
from bootbridge.bootstrap.firewall.json_query import find, jq_filter
from bootbridge.bootstrap.firewall.model import Lookup
from bootbridge.bootstrap.firewall.providers import MANAGED
from bootbridge.bootstrap.plan.plan import IPNetwork, Networking, Plan, Platform
from bootbridge.bootstrap.plan.ports import Ports
from bootbridge.cli.main import main
from bootbridge.errors import OperatorError

INFRA_ID = "c1-x7k2p"
NAME = f"{INFRA_ID}-bootstrap-konnectivity"
BY_HAND = tuple(platform for platform in Platform if platform not in MANAGED)
V4, V6 = ip_network("10.0.0.0/16"), ip_network("fd00:1::/48")

# Under CI they run, and fail where they cannot.
needs_shellcheck = pytest.mark.skipif(
    not shutil.which("shellcheck") and os.environ.get("CI") != "true", reason="shellcheck is not installed"
)
needs_jq = pytest.mark.skipif(
    not shutil.which("jq") and os.environ.get("CI") != "true", reason="jq is not installed"
)


def plan_on(platform: Platform, *networks: IPNetwork, **fields: Any) -> Plan:
    fields = {"infra_id": INFRA_ID, "networks": Networking(machine=networks or (V4,))} | fields
    return Plan(platform=platform, **fields)


def rule_names(actions: list[firewall.FirewallAction]) -> set[str]:
    return {action.rule for action in actions}


def bodies(actions: list[firewall.FirewallAction]) -> list[Any]:
    return [action.body for action in actions if action.body]


def leaves(value: object) -> Iterator[str]:
    """Every text in a document."""
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
def test_whatever_the_plan_the_rules_created_are_the_rules_removed(plan: Plan) -> None:
    """The same names both ways, and the same as are shown; or both ways are refused."""
    try:
        created = rule_names(firewall.create(plan))
    except OperatorError:
        with pytest.raises(OperatorError):
            firewall.removal(plan)
        return
    assert created == rule_names(firewall.removal(plan))
    if firewall.is_managed(plan):
        assert created == {rule.name for rule in firewall.rules(plan)} != set()
        assert all(name.startswith(plan.infra_id) for name in created)


@given(plans)
def test_whatever_the_plan_the_source_is_never_the_world(plan: Plan) -> None:
    """Not as one network, not as several that make up all, and not by the words clouds have for it."""
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
def test_a_machine_network_that_is_the_whole_world_is_refused(
    platform: Platform, networks: tuple[IPNetwork, ...]
) -> None:
    """Also where groups are the source and where it is done by hand: such a plan is a mistake."""
    with pytest.raises(OperatorError, match=r"networking.machineNetwork: .*/0 is the whole world"):
        firewall.render_files(plan_on(platform, *networks))


@pytest.mark.parametrize("platform", MANAGED)
def test_without_an_infra_id_the_flag_is_named(platform: Platform) -> None:
    """Rules are named after it, so there is no guessing."""
    for of in (firewall.create, firewall.removal, firewall.rules):
        with pytest.raises(OperatorError, match=r"--infra-id: .*metadata.json"):
            of(replace(plan_on(platform), infra_id=""))


@pytest.mark.parametrize("platform", MANAGED)
def test_a_tree_rendered_before_there_is_an_infra_id_says_how_to_get_the_rule(
    platform: Platform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rendering must not wait for the installer; the verb itself refuses, and writes nothing."""
    tree = firewall.render_files(replace(plan_on(platform), infra_id=""))
    page = tree["firewall/open-port.txt"].data.decode()
    assert f"bootbridge firewall create --platform {platform} --infra-id INFRA_ID --apply" in page
    assert json.loads(tree["firewall/open-port.json"].data)["managedBy"] == "bootbridge"
    assert main(["firewall", "create", f"--platform={platform}", f"--output={tmp_path}"]) == 1
    assert "--infra-id" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("infra_id", ["a" * 41, "1cluster"])
def test_an_infra_id_that_makes_no_rule_name_is_refused(infra_id: str) -> None:
    """Clouds limit names to 63 characters and a letter first; cutting it short could meet another's name."""
    with pytest.raises(OperatorError, match=r"--infra-id: .*at most 40 characters"):
        firewall.create(plan_on(Platform.GCP, infra_id=infra_id))


def test_an_unknown_platform_is_refused_and_the_known_ones_named(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, with the choices."""
    assert main(["firewall", "create", "--platform=moon"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--platform" in error
    assert "vsphere" in error


# --- each cloud's own artefact


def test_aws_opens_the_port_to_the_clusters_two_groups_on_a_group_of_its_own() -> None:
    """The shared control plane group is not touched; the same permission is revoked."""
    permits = [body for body in bodies(firewall.create(plan_on(Platform.AWS))) if "IpPermissions" in body]
    revokes = [body for body in bodies(firewall.removal(plan_on(Platform.AWS))) if "IpPermissions" in body]
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
def test_the_body_on_the_command_line_is_the_body_of_the_api(platform: Platform) -> None:
    """Whoever uses the API instead of the CLI sends the same."""
    for action in firewall.create(plan_on(platform)):
        if "--cli-input-json" in action.argv:
            assert json.loads(action.argv[action.argv.index("--cli-input-json") + 1]) == action.body


def test_azure_has_a_rule_per_family_whose_name_is_the_same_both_ways() -> None:
    """Families cannot mix in a rule, and priorities must differ."""
    plan = plan_on(Platform.AZURE, V4, V6, ip_network("10.1.0.0/16"), node_ips=(ip_address("10.0.0.5"),))
    created, removed = firewall.create(plan), firewall.removal(plan)
    assert [action.rule for action in created] == [f"{NAME}-v4", f"{NAME}-v6"]
    assert [a.api.removeprefix("PUT") for a in created] == [a.api.removeprefix("DELETE") for a in removed]
    first, second = (body["properties"] for body in bodies(created))
    assert first["sourceAddressPrefixes"] == ["10.0.0.0/16", "10.1.0.0/16"]
    assert second["sourceAddressPrefixes"] == ["fd00:1::/48"]
    assert (first["destinationAddressPrefix"], second["destinationAddressPrefix"]) == (
        "10.0.0.5",
        "@address@",
    )
    assert (first["destinationPortRange"], first["protocol"], first["access"]) == ("8091", "Tcp", "Allow")
    assert first["priority"] != second["priority"]


def test_gcp_lets_tagged_nodes_reach_the_one_tagged_instance() -> None:
    """Tags hold for both families: one rule, and no ranges."""
    (body,) = bodies(firewall.create(plan_on(Platform.GCP, V4, V6)))
    assert body["sourceTags"] == [f"{INFRA_ID}-control-plane", f"{INFRA_ID}-worker"]
    assert body["targetTags"] == [body["name"]] == [NAME]
    assert body["allowed"] == [{"IPProtocol": "tcp", "ports": ["8091"]}]
    assert (body["direction"], "sourceRanges" in body) == ("INGRESS", False)


def test_ibm_cloud_lets_the_cluster_wide_group_in() -> None:
    """By the group's id, looked up by its name."""
    group, rule = bodies(firewall.create(plan_on(Platform.IBMCLOUD)))
    assert group["name"] == NAME
    assert rule["remote"] == {"id": "@remote@"}
    assert (rule["direction"], rule["protocol"], rule["port_min"], rule["port_max"]) == (
        "inbound",
        "tcp",
        8091,
        8091,
    )


def test_powervs_names_the_machine_networks_and_refuses_ipv6() -> None:
    """IBM's VPC is IPv4 only; leaving a network out silently would break the tunnel later."""
    second = ip_network("192.168.7.0/24")
    remotes = [body["remote"] for body in bodies(firewall.create(plan_on(Platform.POWERVS, V4, second)))]
    assert remotes == [{"cidr_block": "10.0.0.0/16"}, {"cidr_block": "192.168.7.0/24"}]
    with pytest.raises(OperatorError, match=r"networking.machineNetwork: .*no IPv6"):
        firewall.create(plan_on(Platform.POWERVS, V4, V6))


def test_openstack_has_a_rule_per_network_with_its_ethertype() -> None:
    """Neutron refuses a prefix of the other family."""
    rules = bodies(firewall.create(plan_on(Platform.OPENSTACK, V4, V6)))[1:3]
    found = [(r["ethertype"], r["remote_ip_prefix"]) for r in (rule["security_group_rule"] for rule in rules)]
    assert found == [("IPv4", "10.0.0.0/16"), ("IPv6", "fd00:1::/48")]


@pytest.mark.parametrize("platform", MANAGED)
def test_another_port_is_opened_where_the_plan_says_so(platform: Platform) -> None:
    """The port comes from the plan, in body and command alike."""
    text = json.dumps([[a.argv, a.body] for a in firewall.create(plan_on(platform, ports=Ports(agent=9191)))])
    assert "9191" in text
    assert "8091" not in text


# --- by hand


@pytest.mark.parametrize("platform", [*BY_HAND, Platform.AWS])
def test_where_the_firewall_is_the_operators_it_is_said_what_to_open(platform: Platform) -> None:
    """Port, sources, target, lifetime and how to try it, as a page and as data; no infra id needed."""
    plan = plan_on(platform, V4, V6, infra_id="", user_provisioned=True, node_ips=(ip_address("10.0.0.5"),))
    assert firewall.create(plan) == firewall.removal(plan) == []
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


@pytest.mark.parametrize("platform", BY_HAND)
def test_these_platforms_have_no_firewall_of_ours(platform: Platform) -> None:
    """Also when nobody says --user-provisioned."""
    assert not firewall.is_managed(plan_on(platform))


# --- files and commands


@needs_shellcheck
@pytest.mark.parametrize("platform", MANAGED)
def test_the_scripts_are_posix_and_shellcheck_finds_nothing(platform: Platform, tmp_path: Path) -> None:
    """All warnings on, for sh."""
    words = [f"--platform={platform}", f"--infra-id={INFRA_ID}", f"--output={tmp_path}"]
    assert main(["firewall", "show", *words]) == 0
    scripts = sorted((tmp_path / "firewall").glob("*.sh"))
    assert [path.name for path in scripts] == ["create.sh", "remove.sh"]
    assert all(path.stat().st_mode & 0o777 == 0o755 for path in scripts)
    done = subprocess.run(["shellcheck", "--shell=sh", *scripts], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("platform", MANAGED)
def test_json_holds_every_command_and_body(platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    """What scripts read is what the files hold."""
    plan = plan_on(platform)
    for direction, actions in (("create", firewall.create(plan)), ("remove", firewall.removal(plan))):
        assert (
            main(["firewall", direction, f"--platform={platform}", f"--infra-id={INFRA_ID}", "--json"]) == 0
        )
        printed = capsys.readouterr().out
        assert printed.encode() == firewall.render_files(plan)[f"firewall/{direction}.json"].data
        assert [a["command"] for a in json.loads(printed)["actions"]] == [list(a.argv) for a in actions]


@pytest.mark.parametrize("platform", MANAGED)
def test_show_tells_rule_port_source_target_and_removal(
    platform: Platform, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table for people, the same as JSON for scripts."""
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
    ("words", "said"),
    [
        (["show", "--platform=aws", "--infra-id=c1", "--apply"], "--apply: shows only"),
        (["create", "--platform=vsphere", "--apply"], "--apply: the firewall on vsphere is yours"),
        (["create", "--platform=aws", "--infra-id=c1", "--output=/proc/x"], "cannot write /proc/x"),
        (["shut"], "invalid choice: 'shut'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the flag or file named."""
    assert main(["firewall", *words]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


# --- finding ids in answers

LOOKUPS = [
    Lookup("x", "x", ("x",), "Reservations[].Instances[]", "VpcId"),
    Lookup("x", "x", ("x",), "[]", "id", where=(("name", "a"), ("port", 8091))),
    Lookup("x", "x", ("x",), "[].groups[]", "id", unless=(("name", "a"),)),
    Lookup("x", "x", ("x",), "[]", "zone", last_part=True),
    Lookup("x", "x", ("x",), "[]", "remote.name", where=(("remote.cidr", "10.0.0.0/8"),)),
]
ANSWERS: list[Any] = [
    {"Reservations": [{"Instances": [{"VpcId": "vpc-1"}, {"VpcId": "vpc-2"}]}, {"Instances": []}]},
    [{"name": "a", "port": 8091, "id": "1"}, {"name": "a", "port": 22, "id": "2"}, {"name": "b", "id": "3"}],
    [{"groups": [{"name": "a", "id": "1"}, {"name": "b", "id": "2"}]}, {"groups": None}],
    [{"zone": "https://host/zones/us-c1-a"}, {"zone": None}],
    [{"remote": {"cidr": "10.0.0.0/8", "name": "n"}}, {"remote": None}, {}],
    [],
    {},
    None,
]


@needs_jq
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_the_script_finds_in_an_answer_what_we_find(lookup: Lookup) -> None:
    """One question, two readers; each answer of every shape read by both."""
    for answer in ANSWERS:
        text = json.dumps(answer)
        done = subprocess.run(["jq", "-r", jq_filter(lookup)], input=text, capture_output=True, text=True)
        ours = find(lookup, text)
        if done.returncode == 0:
            assert done.stdout.split() == ours, text
        else:  # jq refuses an answer of the wrong shape; we find nothing in it
            assert ours == [], text
