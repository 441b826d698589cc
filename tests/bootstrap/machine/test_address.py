"""Runs one table of address selections in real network namespaces, with Python and with the shell."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bootbridge.bootstrap.machine import network as node_network
from bootbridge.bootstrap.plan.plan import Networking, Plan
from bootbridge.cli.main import main
from bootbridge.errors import OperatorError
from tests.bootstrap.render.shell_node import Network, Node, needs_node
from tests.support.process_program import OURS

VARIABLE = "OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP"
V4, V6 = "172.30.0.0/16", "fd02::/112"
pytestmark = needs_node


@dataclass(frozen=True)
class Case:
    """Holds a node's network, the operator's input, and the expected result."""

    name: str
    links: dict[str, list[str]]
    machine: list[str] = field(default_factory=lambda: ["10.0.0.0/16"])
    service: list[str] = field(default_factory=lambda: [V4])
    routes: list[str] = field(default_factory=list)
    explicit: list[str] = field(default_factory=list)
    variable: str = ""
    found: list[str] = field(default_factory=list)
    error: list[str] = field(default_factory=list)
    warning: str = ""

    @property
    def plan(self) -> Plan:
        networks = Networking(
            machine=tuple(map(ipaddress.ip_network, self.machine)),
            service=tuple(map(ipaddress.ip_network, self.service)),
        )
        return Plan(networks=networks, node_ips=tuple(map(ipaddress.ip_address, self.explicit)))


CASES = [
    Case("the address inside the machine network", {"nic0": ["10.0.0.5/24"]}, found=["10.0.0.5"]),
    Case(
        "inside the machine network wins over the default route",
        {"nic0": ["192.168.1.5/24"], "nic1": ["10.0.3.5/24"]},
        routes=["default via 192.168.1.1"],
        found=["10.0.3.5"],
    ),
    Case(
        "outside the machine networks the default route's source is taken",
        {"nic0": ["192.168.1.5/24"], "nic1": ["192.168.2.5/24"]},
        routes=["default via 192.168.2.1"],
        found=["192.168.2.5"],
    ),
    Case(
        "of two default routes the kernel prefers the one with the lower metric",
        {"nic0": ["192.168.1.5/24"], "nic1": ["192.168.2.5/24"]},
        routes=["default via 192.168.1.1 metric 200", "default via 192.168.2.1 metric 100"],
        found=["192.168.2.5"],
    ),
    Case(
        "two interfaces inside the machine network: the default route's source decides",
        {"nic0": ["10.0.1.5/24"], "nic1": ["10.0.2.5/24"]},
        routes=["default via 10.0.2.1"],
        found=["10.0.2.5"],
    ),
    Case(
        "two interfaces inside the machine network and no default route: ambiguous",
        {"nic0": ["10.0.1.5/24"], "nic1": ["10.0.2.5/24"]},
        error=["ambiguous IPv4 address", "10.0.1.5/24 on nic0", "10.0.2.5/24 on nic1", "--node-ip", VARIABLE],
    ),
    Case(
        "no default route and nothing inside the machine networks: no candidate",
        {"nic0": ["192.168.1.5/24"]},
        error=[
            "no IPv4 address",
            "10.0.0.0/16",
            "192.168.1.5/24 on nic0",
            "default routes: none",
            "--node-ip",
            VARIABLE,
        ],
    ),
    Case("no interface at all: no candidate", {}, error=["127.0.0.1/8 on lo (local to this machine)"]),
    Case(
        "a load balancer's /32 on the same interface is ignored",
        {"nic0": ["10.0.0.5/24", "10.0.0.100/32"]},
        found=["10.0.0.5"],
    ),
    Case(
        "a secondary address is ignored",
        {"nic0": ["10.0.0.5/24", "10.0.0.6/24"]},
        found=["10.0.0.5"],
    ),
    Case(
        "a /32 from DHCP is used",
        {"nic0": ["10.0.0.5/32 valid_lft 3600 preferred_lft 3600"]},
        found=["10.0.0.5"],
    ),
    Case("a virtual address is used if it is the only one", {"nic0": ["10.0.0.5/32"]}, found=["10.0.0.5"]),
    Case(
        "link-local addresses are ignored",
        {"nic0": ["169.254.7.7/16", "fe80::7/64"]},
        machine=["169.254.0.0/16"],
        error=["169.254.7.7/16 on nic0 (link-local)", "fe80::7/64 on nic0 (link-local)"],
    ),
    Case(
        "IPv6 alone, inside the machine network",
        {"nic0": ["fd00:1::5/64", "fe80::7/64"]},
        machine=["fd00:1::/48"],
        service=[V6],
        found=["fd00:1::5"],
    ),
    Case(
        "IPv6 alone, by the default route",
        {"nic0": ["fd00:9::5/64"]},
        machine=["fd00:1::/48"],
        service=[V6],
        routes=["-6 default via fd00:9::1 dev nic0"],
        found=["fd00:9::5"],
    ),
    Case(
        "a machine network that ends in the middle of a byte",
        {"nic0": ["fd00:1:0:8000::5/64"], "nic1": ["fd00:1:0:7fff::5/64"]},
        machine=["fd00:1:0:8000::/49"],
        service=[V6],
        found=["fd00:1:0:8000::5"],
    ),
    Case(
        "deprecated addresses are ignored, such as a virtual IPv6 address",
        {"nic0": ["fd00:1::5/64", "fd00:1::100/64 preferred_lft 0 valid_lft 3600"]},
        machine=["fd00:1::/48"],
        service=[V6],
        found=["fd00:1::5"],
    ),
    Case(
        "SLAAC and DHCPv6 on one interface without a default route: the DHCPv6 address",
        {
            "nic0": [
                "fd00:1::aaaa/64 valid_lft 3600 preferred_lft 3600",
                "fd00:1::5/128 valid_lft 3600 preferred_lft 3600",
            ]
        },
        machine=["fd00:1::/48"],
        service=[V6],
        found=["fd00:1::5"],
    ),
    Case(
        "SLAAC and DHCPv6 on two interfaces without a default route: ambiguous",
        {
            "nic0": ["fd00:1::aaaa/64 valid_lft 3600 preferred_lft 3600"],
            "nic1": ["fd00:1::5/128 valid_lft 3600 preferred_lft 3600"],
        },
        machine=["fd00:1::/48"],
        service=[V6],
        error=["ambiguous IPv6 address", "fd00:1::aaaa/64 on nic0", "fd00:1::5/128 on nic1"],
    ),
    Case(
        "two IPv6 addresses on one interface without a default route: ambiguous",
        {"nic0": ["fd00:1::5/64", "fd00:1::6/64"]},
        machine=["fd00:1::/48"],
        service=[V6],
        error=["ambiguous IPv6 address", "fd00:1::5/64 on nic0", "fd00:1::6/64 on nic0"],
    ),
    Case(
        "dual stack: one of each, the primary IP version first",
        {"nic0": ["10.0.0.5/24", "fd00:1::5/64"]},
        machine=["10.0.0.0/16", "fd00:1::/48"],
        service=[V4, V6],
        found=["10.0.0.5", "fd00:1::5"],
    ),
    Case(
        "dual stack with IPv6 as the primary version",
        {"nic0": ["10.0.0.5/24", "fd00:1::5/64"]},
        machine=["10.0.0.0/16", "fd00:1::/48"],
        service=[V6, V4],
        found=["fd00:1::5", "10.0.0.5"],
    ),
    Case(
        "dual stack over two interfaces, one version by its network and one by its route",
        {"nic0": ["10.0.0.5/24"], "nic1": ["fd00:9::5/64"]},
        service=[V4, V6],
        routes=["-6 default via fd00:9::1 dev nic1"],
        found=["10.0.0.5", "fd00:9::5"],
    ),
    Case(
        "dual stack on a node that has one version only: that one, with a warning",
        {"nic0": ["10.0.0.5/24"]},
        service=[V4, V6],
        found=["10.0.0.5"],
        warning="no IPv6 address found",
    ),
    Case(
        "--node-ip has precedence over detection",
        {"nic0": ["10.0.0.5/24", "192.168.1.5/24"]},
        routes=["default via 10.0.0.1"],
        explicit=["192.168.1.5"],
        found=["192.168.1.5"],
    ),
    Case(
        "--node-ip keeps its order and is deduplicated",
        {"nic0": ["10.0.0.5/24", "fd00:1::5/64"]},
        service=[V4, V6],
        explicit=["fd00:1::5", "10.0.0.5", "fd00:1::5"],
        found=["fd00:1::5", "10.0.0.5"],
    ),
    Case(
        "a given address on no interface is used with a warning: it may be translated (NAT)",
        {"nic0": ["10.0.0.5/24"]},
        explicit=["203.0.113.7"],
        found=["203.0.113.7"],
        warning="address not found on any interface: 203.0.113.7",
    ),
    Case(
        "the installer's variable gives the address",
        {"nic0": ["10.0.0.5/24", "192.168.1.5/24"]},
        variable="192.168.1.5",
        found=["192.168.1.5"],
    ),
    Case(
        "the plan has precedence over the installer's variable",
        {"nic0": ["10.0.0.5/24", "192.168.1.5/24"]},
        explicit=["10.0.0.5"],
        variable="192.168.1.5",
        found=["10.0.0.5"],
    ),
    Case(
        "IPv6 may be written in any form",
        {"nic0": ["fd00:1::5/64"]},
        service=[V6],
        variable="[FD00:1:0:0::0005]",
        found=["fd00:1::5"],
    ),
    Case(
        "an invalid IPv4 address is rejected",
        {},
        variable="10.0.0.256",
        error=["10.0.0.256", "invalid IP address"],
    ),
    Case(
        "an invalid IPv6 address is rejected",
        {},
        variable="fd00:::5",
        error=["fd00:::5", "invalid IP address"],
    ),
    Case("loopback is rejected", {}, variable="127.0.0.1", error=["unreachable from other machines"]),
    Case("link-local is rejected", {}, variable="fe80::1", error=["unreachable from other machines"]),
]


Outcome = tuple[int, list[str], str]  # exit code, addresses, stderr
Find = Callable[[Case, Network], Outcome]


@pytest.fixture(params=["python", "shell"])
def find(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Find:
    def in_python(case: Case, network: Network) -> Outcome:
        monkeypatch.setenv(VARIABLE, case.variable)
        flags = [f"--machine-network={each}" for each in case.machine]
        flags += [f"--service-network={each}" for each in case.service]
        flags += [f"--node-ip={each}" for each in case.explicit]
        with network.entered():
            code = main(["address", "--json", *flags])
        out, err = capsys.readouterr()
        found = json.loads(out)["addresses"] if out else []
        return code, [each["address"] for each in found], err

    def in_shell(case: Case, network: Network) -> Outcome:
        node = Node(tmp_path / "node", network, case.plan)
        done = node.run(f"{node.plan.paths.hook_script} address", {VARIABLE: case.variable})
        return done.returncode, done.stdout.split(), done.stderr

    return in_python if request.param == "python" else in_shell


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_addresses(case: Case, network: Network, find: Find) -> None:
    """Both implementations give the expected result for each row of the table."""
    for name, addresses in case.links.items():
        network.interface(name, *addresses)
    for route in case.routes:
        version, words = ("-6 ", route[3:]) if route.startswith("-6 ") else ("", route)
        network.ip(f"{version}route add {words}")

    code, found, stderr = find(case, network)

    assert found == case.found, stderr
    assert code == (0 if case.found else 1)
    assert all(part in stderr for part in case.error), stderr
    assert case.warning in stderr
    assert stderr.count("\n") == (1 if case.error or case.warning else 0), stderr


def test_an_interface_that_is_down_is_ignored(network: Network, find: Find) -> None:
    network.interface("nic0", "10.0.0.5/24")
    network.interface("nic1", "10.0.1.5/24")
    network.ip("link set nic1 down")

    assert find(CASES[0], network)[1] == ["10.0.0.5"]


def test_an_interface_without_carrier_is_ignored(network: Network, find: Find) -> None:
    """For example a Linux bridge without attached interfaces."""
    network.interface("nic0", "10.0.0.5/24")
    network.interface("nic1", "10.0.1.5/24")
    network.ip("link set nic1-peer down")

    assert find(CASES[0], network)[1] == ["10.0.0.5"]


def test_a_temporary_address_is_ignored(network: Network, find: Find) -> None:
    """Even if it is the kernel's source address. The stable one on the same interface is used."""
    network.interface("nic0")
    prefer = "echo 2 > /proc/sys/net/ipv6/conf/nic0/use_tempaddr"
    subprocess.run(network.command(["sh", "-c", prefer]), check=True)
    network.ip("addr add fd00:9::5/64 dev nic0 nodad mngtmpaddr valid_lft 3600 preferred_lft 3600")
    network.ip("-6 route add default via fd00:9::1 dev nic0")
    case = Case("", {}, machine=["fd00:1::/48"], service=[V6])

    assert find(case, network)[1] == ["fd00:9::5"]


def test_the_table_gives_the_reason_for_each_address(network: Network) -> None:
    """It lists every address of the node and marks the chosen one."""
    network.interface("nic0", "10.0.0.5/24", "10.0.0.9/32")
    network.interface("nic1", "192.168.1.5/24", "fd00:1::5/64")
    command = network.command([str(OURS / "bootbridge"), "address"])

    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    rows = {line.strip("* ").partition(" ")[0]: line for line in printed.splitlines()}
    assert printed.startswith("10.0.0.5  (inside the machine networks)\n\n")
    assert [line for line in printed.splitlines() if line.startswith("*")] == [rows["10.0.0.5/24"]]
    assert "\033" not in printed
    assert "virtual address" in rows["10.0.0.9/32"]
    assert "outside the machine networks" in rows["192.168.1.5/24"]
    assert "IPv6 is not used by the cluster" in rows["fd00:1::5/64"]


def test_without_iproute2_the_address_must_be_given(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "node", network)
    node.without("ip")
    failed = node.run(f"{node.plan.paths.hook_script} address")
    given = node.run(f"{node.plan.paths.hook_script} address", {VARIABLE: "10.0.0.5"})
    monkeypatch.setenv("PATH", str(tmp_path))

    assert (failed.returncode, given.stdout) == (1, "10.0.0.5\n")
    assert "command not found: ip" in failed.stderr
    assert VARIABLE in failed.stderr
    with pytest.raises(OperatorError, match="command not found: ip"):
        node_network.observe()
