"""`check --live` on a node with a real server and agent, working and with each fault."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from bootbridge.bootstrap.diagnose import check
from bootbridge.bootstrap.diagnose.check import CheckResult, CheckVerdict
from bootbridge.bootstrap.machine import certificates, network
from bootbridge.bootstrap.machine.node_values import node_values
from bootbridge.bootstrap.plan.plan import Plan, ProxyImage
from bootbridge.bootstrap.plan.ports import Ports
from bootbridge.bootstrap.render import egress_selector, manifests, node_files, program_flags
from bootbridge.cli.main import main
from bootbridge.common.files import Asset, Tree
from bootbridge.common.host import Host
from bootbridge.trust.authority import Authority
from tests.support.process_program import OURS, Program, free_port, until

pytestmark = pytest.mark.slow
IMAGE = "registry.example/bootbridge:1"


class LiveNode:
    """A directory with a node's files, and a server and an agent that use them."""

    def __init__(self, root: Path, address: str) -> None:
        self.root, self.host = root, Host(root)
        ports = Ports(*(free_port() for _ in range(5)))
        addresses = (ipaddress.ip_address(address),)
        self.plan = Plan(
            image=ProxyImage("bootbridge", IMAGE), node_ips=addresses, ports=ports, key_kind="ecdsa-p256"
        )
        bundle = certificates.issue(self.plan, addresses)
        values = node_values(
            self.plan,
            IMAGE,
            addresses,
            ca=bundle.ca_cert,
            agent_cert=bundle.agent.cert_pem,
            agent_key=bundle.agent.key_pem,
        )
        pod = Asset(manifests.to_yaml(manifests.server_pod(self.plan, values)), 0o600)
        config = Asset(yaml.safe_dump(egress_selector.config_override(self.plan)).encode())
        self.write(node_files.node_files(self.plan))
        self.write(certificates.files(self.plan, bundle))
        self.write({self.plan.paths.server_pod: pod, self.plan.paths.apiserver_config: config})
        self.server = self._start("proxy-server", program_flags.server_args(self.plan))
        # An agent that dials too early waits a second before the next attempt.
        until(lambda: self.host.http_get(ports.server_health, "/healthz")[0] == 200, "the server listens")
        (root / "token").write_text("a.b.c")  # proves nothing: the default route is left
        agent = program_flags.agent_args(self.plan, values)
        self.agent = self._start(
            "proxy-agent", [word for word in agent if not word.startswith("--agent-id=")]
        )

    def write(self, tree: Tree) -> None:
        for path, asset in tree.items():
            self.host.make_directory(path.rpartition("/")[0])
            self.host.write(path, asset)

    def _start(self, name: str, words: list[str]) -> Program:
        """Starts a program with its container's flags, and paths in them mapped to the node's directory."""
        tls = self.host.path(self.plan.paths.tls)
        flags = {}
        for word in words:
            key, _, value = word.removeprefix("--").partition("=")
            value = value.replace(program_flags.CERTIFICATES_SEEN_BY_SERVER, str(tls))
            value = value.replace(program_flags.TOKEN_SEEN_BY_AGENT, str(self.root))
            directory = self.plan.paths.socket_directory
            flags[key] = value.replace(directory, str(self.host.path(directory)))
        for flag, file in (("agent-cert", "agent.crt"), ("agent-key", "agent.key")):
            if flag in flags:
                flags[flag] = str(tls / file)
        if "agent-identifiers" in flags:  # the kubelet replaces the variables in the others
            flags["agent-identifiers"] = "default-route=true"
        return Program(OURS / name, flags, self.root)

    def wait_until_ready(self) -> None:
        until(self._is_ready, "an agent is connected")

    def _is_ready(self) -> bool:
        for program in (self.server, self.agent):
            assert program.alive, program.log
        return self.host.http_get(self.plan.ports.server_health, "/readyz")[0] == 200

    def check(self, hours: int = 0) -> dict[str, CheckResult]:
        """Checks the node that many hours from now."""
        # Not a time from the collection: minutes later, new certificates would not be valid yet at that time.
        now = datetime.now(UTC) + timedelta(hours=hours)
        return {result.name: result for result in check.of_node(self.root, now)}

    def failing(self, hours: int = 0) -> set[str]:
        return {name for name, result in self.check(hours).items() if result.verdict is CheckVerdict.FAIL}


@pytest.fixture
def root() -> Iterator[Path]:
    """Short: a socket's path is limited to 108 bytes."""
    path = Path(tempfile.mkdtemp(prefix="bb"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def node(root: Path) -> Iterator[LiveNode]:
    usable = [str(each.address) for each in network.observe().of(4) if not each.unusable]
    if not usable:
        assert os.environ.get("CI") != "true", "this machine has no address but loopback"
        pytest.skip("this machine has no address but loopback")
    node = LiveNode(root, usable[0])
    try:
        node.wait_until_ready()
        yield node
    finally:
        for program in (node.agent, node.server):
            program.kill()


def test_a_node_with_a_working_tunnel_passes_every_check(node: LiveNode) -> None:
    assert {result.verdict for result in node.check().values()} == {CheckVerdict.PASS}
    assert main(["check", "--live", "--root", str(node.root)]) == 0


def test_a_server_without_agents_is_healthy_but_not_ready(node: LiveNode) -> None:
    node.agent.kill()
    port = node.plan.ports.server_health
    until(lambda: node.host.http_get(port, "/readyz")[0] != 200, "the server is not ready")
    assert node.failing() == {"server-ready"}
    assert "agent" in node.check()["server-ready"].fix


def test_a_stopped_server_fails_all_its_checks(node: LiveNode) -> None:
    """Socket, port and health pages."""
    node.server.kill()
    assert node.failing() == {"socket", "agent-port", "server-healthy", "server-ready"}
    assert main(["check", "--live", "--root", str(node.root), "--json"]) == 2


def test_certificates_warn_before_they_expire_and_fail_after(node: LiveNode) -> None:
    """The warning starts in the last quarter of their validity."""
    assert node.check(hours=20)["certificates"].verdict is CheckVerdict.WARN
    assert node.failing(hours=25) == {"certificates"}


def _other_certificates(node: LiveNode) -> None:
    bundle = certificates.issue(node.plan, (ipaddress.ip_address("192.0.2.77"),))
    node.write(certificates.files(node.plan, bundle))


def _mixed_certificates(node: LiveNode) -> None:
    other = certificates.files(node.plan, certificates.issue(node.plan, node.plan.node_ips))
    node.write({node.plan.paths.ca_cert: other[node.plan.paths.ca_cert]})


def _plain_file_as_socket(node: LiveNode) -> None:
    path = node.host.path(node.plan.paths.socket)
    path.unlink()
    path.touch()


def _socket_without_listener(node: LiveNode) -> None:
    path = node.host.path(node.plan.paths.socket)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    path.chmod(0o755)


FAULTS: dict[str, tuple[Callable[[LiveNode], object], set[str]]] = {
    "a key that others may read": (
        lambda node: node.host.path(node.plan.paths.agent_key).chmod(0o644),
        {"key-modes"},
    ),
    "the authority's key left behind": (
        lambda node: node.write({f"{node.plan.paths.tls}/ca.key": Asset(Authority.create("x").key_pem)}),
        {"ca-key-gone"},
    ),
    "certificates of another authority": (_mixed_certificates, {"certificates"}),
    "no certificates": (
        lambda node: node.host.remove_tree(node.plan.paths.tls),
        {"certificates", "key-modes", "agent-port"},
    ),
    "a socket that every user may use": (
        lambda node: node.host.path(node.plan.paths.socket).chmod(0o777),
        {"socket"},
    ),
    "a plain file instead of a socket": (_plain_file_as_socket, {"socket"}),
    "a socket without a listener": (_socket_without_listener, {"socket"}),
    "no static pod": (lambda node: node.host.remove(node.plan.paths.server_pod), {"server-pod"}),
    "a static pod with placeholders": (
        lambda node: node.write({node.plan.paths.server_pod: Asset(b"image: '@BOOTBRIDGE_IMAGE@'\n")}),
        {"server-pod"},
    ),
    "no egress config": (
        lambda node: node.host.remove(node.plan.paths.egress_config),
        {"egress-config"},
    ),
    "a bootstrap that goes on without the tunnel": (
        lambda node: node.write({node.plan.paths.bypass: Asset(b"")}),
        {"egress-config"},
    ),
    "a kube-apiserver without the flag": (
        lambda node: node.write({node.plan.paths.apiserver_config: Asset(b"apiServerArguments: {}\n")}),
        {"kube-apiserver"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_by_the_check_of_that_name(node: LiveNode, fault: str) -> None:
    cause, wanted = FAULTS[fault]
    cause(node)
    assert node.failing() == wanted
    assert all(node.check()[name].fix for name in wanted)


def test_an_address_missing_in_the_certificate_fails(node: LiveNode) -> None:
    """Agents would reject the server."""
    _other_certificates(node)
    assert "certificates" in node.failing()
    assert "192.0.2.77" in node.check()["certificates"].evidence


def test_a_kube_apiserver_that_is_not_rendered_yet_is_not_checked(node: LiveNode) -> None:
    """bootkube.sh renders it later."""
    node.host.remove(node.plan.paths.apiserver_config)
    assert node.check()["kube-apiserver"].verdict is CheckVerdict.NOT_RUN


def test_a_node_without_a_tunnel_fails_with_one_result(root: Path) -> None:
    (found,) = check.of_node(root, datetime.now(UTC))
    assert (found.name, found.verdict) == ("plan-record", CheckVerdict.FAIL)


@pytest.mark.parametrize(
    ("notes", "verdict", "words"),
    [
        (b"", "pass", "nft closes port"),
        (b"port 2041 is open to other machines\n", "warn", "is open to other machines"),
    ],
)
def test_a_health_port_that_cannot_be_bound(node: LiveNode, notes: bytes, verdict: str, words: str) -> None:
    """By programs of 4.11 to 4.13: closed by a rule, or open."""
    paths = node.plan.paths
    node.write(
        {paths.program_flags: Asset(b"image\nproxy-server health-bind-address\n"), paths.notes: Asset(notes)}
    )

    found = node.check()["health-port"]

    assert found.verdict == verdict
    assert words in found.evidence
