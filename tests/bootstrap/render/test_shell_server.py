"""Runs the shell's server stage with images and servers that fail: the records and the receipt are true."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootbridge.bootstrap.plan.payload_programs import OPTIONAL_FLAGS
from bootbridge.bootstrap.plan.plan import Networking, Plan
from bootbridge.bootstrap.render import egress_selector
from tests.bootstrap.render.fake_programs import NEWEST, OLDEST
from tests.bootstrap.render.shell_node import BOOT_SECONDS, Network, Node, needs_node
from tests.support.process_program import until

QUICK = Plan(key_kind="ecdsa-p256")
IPV6 = Networking(machine=(ip_network("fd00:1::/48"),), service=(ip_network("fd02::/112"),))
IPV6_FIRST = Networking(
    machine=(ip_network("fd00:1::/48"), ip_network("10.0.0.0/16")),
    service=(ip_network("fd02::/112"), ip_network("172.30.0.0/16")),
)
SHORT = "BOOTBRIDGE_SERVER_START_SECONDS=1\nBOOTBRIDGE_SERVER_RECHECK_SECONDS=1\n"
SETUP, MANIFESTS = "bootbridge_setup", "bootbridge_manifests"
ALL = f"{SHORT}{SETUP}\n{MANIFESTS}"
END = "bootbridge_cleanup\ntouch /opt/openshift/.bootkube.done"
START, SUCCESS, FAILURE = (f"{end} konnectivity-server-bootstrap" for end in ("start", "success", "failure"))
# Prints which of the ports accept a connection.
DIAL = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), timeout=1).close()
        print(port)
    except OSError:
        pass
"""
pytestmark = needs_node


@pytest.fixture
def network(network: Network) -> Network:
    network.interface("nic0", "10.0.0.5/24", "fd00:1::5/64")
    return network


@pytest.fixture
def node(tmp_path: Path, network: Network) -> Node:
    return Node(tmp_path / "node", network, QUICK)


@pytest.fixture
def neighbour(network: Network) -> Iterator[Network]:
    """Another machine in the node's network."""
    other = Network()
    network.ip(f"link set nic0-peer netns {other.name}")
    other.ip("link set nic0-peer addrgenmode none")
    other.ip("link set nic0-peer up")
    other.address("nic0-peer", "10.0.0.9/24")
    other.address("nic0-peer", "fd00:1::9/64")
    yield other
    other.remove()


def arguments(node: Node, path: str) -> list[str]:
    manifest = yaml.safe_load(node.path(path).read_text())
    spec = manifest["spec"]["template"]["spec"] if manifest["kind"] == "DaemonSet" else manifest["spec"]
    found: list[str] = spec["containers"][0]["args"]
    return found


def names(args: list[str]) -> set[str]:
    return {each.removeprefix("--").partition("=")[0] for each in args}


def server_records(node: Node) -> list[str]:
    return [each for each in node.records() if each.endswith("konnectivity-server-bootstrap")]


def receipt_of(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.path(node.plan.paths.receipt).read_text())
    return found


def egress_of(node: Node) -> Any:
    return yaml.safe_load(node.path(node.plan.paths.egress_config).read_text())


def dial(source: Network, host: str, *ports: int) -> list[int]:
    command = source.command([sys.executable, "-S", "-c", DIAL, host, *map(str, ports)])
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [int(line) for line in done.stdout.split()]


# --- images without the flags


def test_old_programs_get_only_the_flags_that_they_know(node: Node, neighbour: Network) -> None:
    """The server runs, and its health port is closed to other machines until clean-up removes the rule."""
    node.offer_programs(OLDEST)

    logged = node.run_checked(ALL)

    paths, ports = node.plan.paths, node.plan.ports
    assert not names(arguments(node, paths.server_pod)) & set(OPTIONAL_FLAGS)
    assert not names(arguments(node, paths.daemonset_manifest)) & set(OPTIONAL_FLAGS)
    assert server_records(node) == [START, SUCCESS]
    assert "nft table inet bootbridge closes port 2041" in logged
    for host in ("10.0.0.5", "fd00:1::5"):
        assert dial(neighbour, host, ports.server_health, ports.agent) == [ports.agent]
        assert dial(node.network, host, ports.server_health) == [ports.server_health]
    (node.root / "cluster/server-stays").write_text("600")
    node.run_checked(f"BOOTBRIDGE_SERVER_END_SECONDS=1\n{END}")
    rule = {"resource": "firewall", "name": "nft table inet bootbridge"}
    assert rule in receipt_of(node)["removed"]
    assert dial(neighbour, "10.0.0.5", ports.server_health) == [ports.server_health]


def test_new_programs_get_all_flags_and_no_rule(node: Node) -> None:
    node.offer_programs(NEWEST)

    node.run_checked(ALL)

    args = arguments(node, node.plan.paths.server_pod)
    assert {"--health-bind-address=127.0.0.1", "--admin-bind-address=127.0.0.1"} <= set(args)
    assert "bootbridge" not in node.run("nft list tables").stdout


def test_an_open_health_port_is_in_log_and_receipt(node: Node) -> None:
    """If nft is missing as well, nothing closes the port."""
    node.offer_programs(OLDEST)
    node.without("nft")

    logged = node.run_checked(ALL)
    node.run_checked(END)

    problem = "port 2041 (health and metrics of the server) is open to other machines"
    assert problem in logged
    assert [each for each in receipt_of(node)["warnings"] if each.startswith(problem)]


def test_programs_that_get_an_unknown_flag_are_a_failed_stage(node: Node) -> None:
    """As when a tag of an image is moved to an older one: the flags were asked before. Nothing hangs."""
    node.offer_programs(NEWEST)
    node.run_checked(SETUP)
    node.offer_programs(OLDEST)
    reboot(node)

    logged = node.run_checked(ALL)

    assert re.search("restarts: [0-9]+, last words: Error: unknown flag: --health-bind-address", logged), (
        logged
    )
    assert server_records(node) == [START, SUCCESS, *[START, FAILURE] * 2]
    assert egress_of(node) == egress_selector.direct_configuration()


@pytest.mark.parametrize(
    ("version", "networks", "host"),
    [
        (OLDEST, IPV6, "[fd00:1::5]"),
        (NEWEST, IPV6, "fd00:1::5"),
        (OLDEST, IPV6_FIRST, "[fd00:1::5]"),
    ],
)
def test_old_agents_get_ipv6_addresses_in_brackets(
    tmp_path: Path, network: Network, version: str, networks: Networking, host: str
) -> None:
    """They join host and port without brackets; newer ones would add a second pair."""
    node = Node(tmp_path / "node", network, replace(QUICK, networks=networks))
    node.offer_programs(version)

    logged = node.run_checked(ALL)

    assert f"--proxy-server-host={host}" in arguments(node, node.plan.paths.daemonset_manifest)
    assert f"agents will dial {host}\n" in logged


# --- servers that do not answer


def crashes(node: Node) -> None:
    (node.root / "cluster/server-crashes").write_text(
        "starting\nError: bind: address already in use\n  -v level\n"
    )


def listens_only(node: Node) -> None:
    (node.root / "cluster/server-silent").touch()


def has_no_socket(node: Node) -> None:
    (node.root / "cluster/server-socketless").touch()


def is_not_started(node: Node) -> None:
    (node.root / "cluster/kubelet-absent").touch()


def cannot_be_pulled(node: Node) -> None:
    (node.root / "cluster/image-cannot-run").touch()


def does_not_answer_help(node: Node) -> None:
    (node.root / "cluster/help-hangs").touch()


def lacks_a_required_flag(node: Node) -> None:
    path = node.root / "cluster/help/proxy-server"
    path.write_text(path.read_text().replace("--uds-name", "--other-name"))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (crashes, "connection refused; restarts: [0-9]+, last words: Error: bind: address already in use"),
        (listens_only, "http://127.0.0.1:2041/healthz does not return 200"),
        (has_no_socket, "konnectivity-server.socket: no process listens"),
        (is_not_started, "connection refused; the kubelet has not started it"),
        (cannot_be_pulled, "`proxy-server --help` failed: Error: initializing source: connection refused"),
        (does_not_answer_help, "`proxy-server --help` failed"),
        (lacks_a_required_flag, "proxy-server does not know --uds-name"),
    ],
)
def test_without_a_server_the_bootstrap_goes_on_directly(node: Node, fault: Any, words: str) -> None:
    """The stage has failed, the kube-apiserver dials directly, no agent is created, the receipt says so."""
    fault(node)

    logged = node.run_checked(f"BOOTBRIDGE_HELP_SECONDS=1\n{ALL}")

    assert re.search(words, logged), logged
    assert server_records(node) == [START, FAILURE] * 2
    assert egress_of(node) == egress_selector.direct_configuration()
    assert egress_selector.validate(egress_of(node)) == []
    assert not list(node.path(node.plan.paths.cluster_manifests).glob("bootbridge-*"))
    node.run_checked(END)
    written = receipt_of(node)
    assert written["clean"] is True
    assert [each for each in written["warnings"] if "goes on without the tunnel" in each]


def test_a_server_that_answers_late_is_used(node: Node) -> None:
    """Before the kube-apiserver starts. An operator's edit of the egress configuration survives."""
    config = node.path(node.plan.paths.egress_config)
    config.write_text(edited := f"# mine\n{config.read_text()}")
    crashes(node)

    node.run_checked(
        f"{SHORT}{SETUP}\nrm /cluster/server-crashes\nBOOTBRIDGE_SERVER_RECHECK_SECONDS=60\n{MANIFESTS}"
    )

    assert server_records(node) == [START, FAILURE, START, SUCCESS]
    assert config.read_text() == edited
    assert node.path(node.plan.paths.daemonset_manifest).exists()
    node.run_checked(END)
    assert receipt_of(node)["clean"] is True
    assert receipt_of(node)["warnings"] == []


def test_the_wall_clock_does_not_end_the_wait(node: Node) -> None:
    """NTP sets it during a bootstrap; bash's SECONDS follow it."""
    crashes(node)
    (node.root / f"cluster/at-{BOOT_SECONDS + 3}").write_text("rm /cluster/server-crashes\n")
    jump = 'sleep() { SECONDS=$((SECONDS + 100000)); command sleep "$@"; }'

    node.run_checked(f"{jump}\n{SETUP}")

    assert server_records(node) == [START, SUCCESS]


def test_a_changed_manifest_is_answered_by_the_new_server(node: Node, network: Network) -> None:
    """The old one answers until the kubelet has ended it."""
    node.run_checked(f"{SETUP}\n{MANIFESTS}")
    crashes(node)
    (node.root / "cluster/kubelet-late").touch()
    network.ip("addr del 10.0.0.5/24 dev nic0")
    network.address("nic0", "10.0.0.77/24")

    node.run_checked(ALL)

    assert server_records(node) == [START, SUCCESS, *[START, FAILURE] * 2]


# --- reboots


def reboot(node: Node) -> None:
    """Ends all processes, and removes what is in memory. The socket's file stays: it is below /etc."""
    node.network.end_processes()
    node._kubelet_runs = False
    shutil.rmtree(node.root / "run")
    (node.root / "run").mkdir()
    node.run("nft flush ruleset")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("after", ["", SETUP, f"{SETUP}\n{MANIFESTS}"], ids=["start", "setup", "manifests"])
def test_a_reboot_between_two_stages(node: Node, version: str, after: str) -> None:
    """The next start waits until the server answers again, and the receipt is complete."""
    node.offer_programs(version)
    node.run_checked(after or ":")
    reboot(node)

    node.run_checked(f"{SETUP}\n{MANIFESTS}")

    assert server_records(node)[-1] == SUCCESS
    assert ("bootbridge" in node.run("nft list tables").stdout) == (version == OLDEST)
    assert egress_of(node) == egress_selector.configuration(node.plan)
    node.run_checked(END)
    assert receipt_of(node)["clean"] is True
    assert receipt_of(node)["warnings"] == []


def test_objects_of_an_earlier_start_are_removed_after_a_start_without_the_tunnel(node: Node) -> None:
    """That start deletes the manifests. The removal retries nevertheless, and the receipt has the objects."""
    node.run_checked(f"{SETUP}\n{MANIFESTS}\nwait")
    crashes(node)
    reboot(node)
    node.run_checked(ALL)
    assert not node.path(node.plan.paths.namespace_manifest).exists()
    (node.root / "cluster/down-until").write_text(str(BOOT_SECONDS + node.now() + 60))

    node.run_checked(END)

    kinds = ("namespace", "secret", "daemonset")
    assert not [path for kind in kinds for path in (node.root / "cluster" / kind).iterdir()]
    written = receipt_of(node)
    assert written["clean"] is True
    assert set(kinds) <= {item["resource"] for item in written["removed"]}


@pytest.mark.parametrize("template", ["server-pod.yaml", "agent-daemonset.yaml"])
def test_a_power_failure_while_a_manifest_is_replaced(node: Node, network: Network, template: str) -> None:
    """The next start does not take the earlier manifest for the new one."""
    node.run_checked(f"{SETUP}\n{MANIFESTS}")
    network.ip("addr del 10.0.0.5/24 dev nic0")
    network.address("nic0", "10.0.0.77/24")
    wrapped = 'text=$(declare -f bootbridge_render); eval "original_${text#bootbridge_}"'
    stopped = f'bootbridge_render() {{ [[ $1 != {template} ]] || exit 137; original_render "$@"; }}'
    assert node.bootkube(f"{wrapped}\n{stopped}\n{SETUP}\n{MANIFESTS}").returncode != 0
    reboot(node)
    pods = (node.plan.paths.server_pod, node.plan.paths.daemonset_manifest)
    before = {path: node.path(path).stat().st_ino for path in pods}

    node.run_checked(f"{SETUP}\n{MANIFESTS}")

    assert "--proxy-server-host=10.0.0.77" in arguments(node, node.plan.paths.daemonset_manifest)
    replaced = node.plan.paths.server_pod if template == "server-pod.yaml" else pods[1]
    assert node.path(replaced).stat().st_ino != before[replaced]


def test_after_cluster_bootstrap_a_reboot_closes_the_health_port(node: Node) -> None:
    """The server runs until the removal."""
    node.offer_programs(OLDEST)
    node.run_checked(f"{SETUP}\n{MANIFESTS}")
    node.path(node.plan.paths.cluster_bootstrap_marker).touch()
    reboot(node)

    node.run_checked(SETUP)

    assert "bootbridge" in node.run("nft list tables").stdout
    node.run_checked(END)
    assert "bootbridge" not in node.run("nft list tables").stdout
    assert receipt_of(node)["clean"] is True
    node.run_checked(SETUP)
    assert "bootbridge" not in node.run("nft list tables").stdout


def test_a_server_that_is_back_before_bootkube_gets_its_rule_again(node: Node) -> None:
    """The kubelet starts it after a reboot. The rule of nft is gone, and the stage need not run."""
    node.offer_programs(OLDEST)
    node.run_checked(SETUP)
    reboot(node)
    problem = ". /usr/local/bin/bootbridge-bootstrap.sh; bootbridge_server_problem"
    until(lambda: not node.run(problem).returncode, "the server answers")
    assert "bootbridge" not in node.run("nft list tables").stdout

    node.run_checked(SETUP)

    assert server_records(node) == [START, SUCCESS]
    assert "bootbridge" in node.run("nft list tables").stdout


def test_a_stale_socket_is_not_a_server(node: Node) -> None:
    """A killed server leaves its socket's file; the kubelet starts the next one late."""
    node.run_checked(f"{SETUP}\n{MANIFESTS}")
    (node.root / "cluster/kubelet-absent").touch()
    reboot(node)
    assert node.path(node.plan.paths.socket).is_socket()

    node.run_checked(ALL)
    assert server_records(node)[2:] == [START, FAILURE] * 2

    (node.root / "cluster/kubelet-absent").unlink()
    until(
        lambda: (
            not node.run(". /usr/local/bin/bootbridge-bootstrap.sh; bootbridge_server_problem").returncode
        ),
        "",
    )
    node.run_checked(ALL)
    assert egress_of(node) == egress_selector.configuration(node.plan)
