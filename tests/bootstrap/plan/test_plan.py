"""Validates plans, stores them as JSON, and builds them from flags."""

from __future__ import annotations

import argparse
import ipaddress
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.bootstrap.plan import record as plan_record
from bootbridge.bootstrap.plan.plan import (
    KEY_KINDS,
    BootkubeStage,
    ClusterNetwork,
    Flavour,
    Networking,
    Plan,
    Platform,
    Protocol,
    ProxyImage,
)
from bootbridge.bootstrap.plan.ports import Ports
from bootbridge.cli.parser import Parser
from bootbridge.cli.plan_flags import NODE_IP_VARIABLE, add_plan_flags, plan_from
from bootbridge.errors import OperatorError
from bootbridge.proxy_server.options import SOCKET_PATH_BYTES_MAX

OURS = ProxyImage("bootbridge", "registry.example/bootbridge:1")


# --- validation


@pytest.mark.parametrize(
    ("fields", "subject"),
    [
        ({"key_kind": "dsa"}, "--key"),
        ({"validity": timedelta(minutes=59)}, "--validity"),
        ({"validity": timedelta(days=8)}, "--validity"),
        ({"ports": Ports(agent=80)}, "--agent-port"),
        ({"ports": Ports(agent=50000)}, "--agent-port"),
        ({"infra_id": "Not_A_Name"}, "--infra-id"),
        ({"flavour": Flavour.KUBEADM}, "--image"),
        ({"node_ips": (ipaddress.ip_address("127.0.0.1"),)}, "--node-ip"),
        ({"node_ips": (ipaddress.ip_address("fe80::1"),)}, "--node-ip"),
        ({"node_ips": (ipaddress.ip_address("0.0.0.0"),)}, "--node-ip"),
        ({"networks": Networking(machine=())}, "networking.machineNetwork"),
        ({"networks": Networking(cluster=())}, "networking.clusterNetwork"),
        ({"networks": Networking(service=())}, "networking.serviceNetwork"),
        (
            {"networks": Networking(cluster=(ClusterNetwork(ipaddress.ip_network("10.128.0.0/14"), 8),))},
            "networking.clusterNetwork.hostPrefix",
        ),
    ],
)
def test_an_invalid_plan_is_rejected(fields: dict[str, Any], subject: str) -> None:
    """The error has the flag or field."""
    with pytest.raises(OperatorError) as caught:
        Plan(**fields)
    assert caught.value.subject == subject


@pytest.mark.parametrize("plan", [Plan(), Plan(flavour=Flavour.KUBEADM, image=OURS)])
def test_socket_paths_fit_the_kernels_limit(plan: Plan) -> None:
    """A server cannot bind a longer path, and a kube-apiserver cannot dial it."""
    for path in (plan.paths.socket, plan.paths.socket_seen_by_apiserver):
        assert len(path.encode()) <= SOCKET_PATH_BYTES_MAX


def test_the_tunnels_files_are_below_its_state_directory() -> None:
    """So that its removal affects no other files."""
    for plan in (Plan(), Plan(flavour=Flavour.KUBEADM, image=OURS)):
        own = [plan.paths.tls, plan.paths.templates, plan.paths.config_override, plan.paths.plan_record]
        own += [plan.paths.stage_marker(stage) for stage in BootkubeStage]
        assert all(path.startswith(f"{plan.paths.state}/") for path in own)


def test_certificates_are_outside_the_directory_of_the_kube_apiserver() -> None:
    """cluster-bootstrap copies all of /opt/openshift/tls for the kube-apiserver's pod."""
    assert not Plan().paths.tls.startswith("/opt/openshift/tls")


def test_the_path_of_the_override_in_the_render_container() -> None:
    """It mounts /opt/openshift as /assets."""
    assert (
        Plan().paths.config_override_seen_by_render
        == "/assets/bootbridge/kube-apiserver-config-override.yaml"
    )


# --- record

addresses = st.one_of(
    st.ip_addresses(v=4, network="10.0.0.0/8"),
    st.ip_addresses(v=6, network="fd00::/16"),
)


@st.composite
def ip_networks(draw: st.DrawFn) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    address = draw(addresses)
    length = draw(st.integers(8, address.max_prefixlen))
    return ipaddress.ip_network((address, length), strict=False)


@st.composite
def cluster_networks(draw: st.DrawFn) -> ClusterNetwork:
    network = draw(ip_networks())
    return ClusterNetwork(network, draw(st.integers(network.prefixlen, network.max_prefixlen)))


def tuples(of: st.SearchStrategy[Any], least: int = 1) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, min_size=least, max_size=3).map(tuple)


ports = st.integers(1024, 49151)
plans = st.builds(
    Plan,
    flavour=st.sampled_from(Flavour),
    platform=st.sampled_from(Platform),
    infra_id=st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True) | st.just(""),
    protocol=st.sampled_from(Protocol),
    image=st.builds(
        ProxyImage, st.sampled_from(["konnectivity", "bootbridge"]), st.just("registry.example/b:1")
    ),
    networks=st.builds(Networking, tuples(ip_networks()), tuples(cluster_networks()), tuples(ip_networks())),
    node_ips=tuples(addresses, 0),
    key_kind=st.sampled_from(KEY_KINDS),
    validity=st.integers(3600, 7 * 86400).map(lambda seconds: timedelta(seconds=seconds)),
    host_network=st.booleans(),
    user_provisioned=st.booleans(),
    restrict_destinations=st.booleans(),
    allow_destinations=tuples(st.sampled_from(["192.0.2.0/24", "[fd00::/8]:1-1024", "127.0.0.1/32:443"]), 0),
    ports=st.builds(Ports, ports, ports, ports, ports, ports),
)


@given(plans)
def test_record_round_trip(plan: Plan) -> None:
    """So that `down` removes what `up` installed."""
    record = plan_record.dump(plan)
    assert plan_record.load(record, "plan.json") == plan
    assert plan_record.dump(plan_record.load(record, "plan.json")) == record


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"version": 2}',
        b'{"version": 1}',
        b'"text"',
        b'{"version": 1, "flavour": "x"}',
    ],
)
def test_an_invalid_record_is_rejected(data: bytes) -> None:
    """The error has the file."""
    with pytest.raises(OperatorError, match=r"plan\.json"):
        plan_record.load(data, "plan.json")


@pytest.mark.parametrize("key", json.loads(plan_record.dump(Plan())))
def test_an_incomplete_record_is_rejected(key: str) -> None:
    """Missing keys get no defaults."""
    document = json.loads(plan_record.dump(Plan()))
    del document[key]
    with pytest.raises(OperatorError):
        plan_record.load(json.dumps(document).encode(), "plan.json")


# --- flags


def read(*argv: str, base: Plan | None = None, environment: dict[str, str] | None = None) -> Plan:
    parser = Parser("bootbridge render", "", "")
    add_plan_flags(parser)
    flags: argparse.Namespace = parser.parse_args(list(argv))
    return plan_from(flags, base=base, environment=environment or {})


def test_defaults() -> None:
    """Those of the OpenShift installer."""
    assert read() == Plan()


def test_every_flag_reaches_the_plan() -> None:
    plan = read(
        *("--platform", "aws", "--infra-id", "demo-1", "--protocol", "HTTPConnect"),
        *("--image", "registry.example/b:1", "--node-ip", "10.1.0.5", "--node-ip", "fd00::5"),
        *("--machine-network", "10.1.0.0/16", "--machine-network", "fd00::/64"),
        *("--cluster-network", "10.4.0.0/16,24", "--cluster-network", "fd01::/48"),
        *("--service-network", "10.5.0.0/16", "--service-network", "fd02::/112"),
        *("--key", "ecdsa-p256", "--validity", "2h", "--host-network", "--user-provisioned"),
        *("--agent-port", "9091", "--no-restrict-destinations"),
        *(
            "--allow-destinations",
            "192.0.2.0/24:443, 127.0.0.1/32",
            "--allow-destinations",
            "[fd05::/64]:443",
        ),
    )
    network = ipaddress.ip_network
    assert plan == Plan(
        platform=Platform.AWS,
        infra_id="demo-1",
        protocol=Protocol.HTTP_CONNECT,
        image=ProxyImage("bootbridge", "registry.example/b:1"),
        node_ips=(ipaddress.ip_address("10.1.0.5"), ipaddress.ip_address("fd00::5")),
        networks=Networking(
            machine=(network("10.1.0.0/16"), network("fd00::/64")),
            cluster=(ClusterNetwork(network("10.4.0.0/16"), 24), ClusterNetwork(network("fd01::/48"), 64)),
            service=(network("10.5.0.0/16"), network("fd02::/112")),
        ),
        key_kind="ecdsa-p256",
        validity=timedelta(hours=2),
        host_network=True,
        user_provisioned=True,
        restrict_destinations=False,
        allow_destinations=("192.0.2.0/24:443", "127.0.0.1/32", "[fd05::/64]:443"),
        ports=Ports(agent=9091),
    )


ALL_NETWORKS = (
    "--machine-network=10.1.0.0/16",
    "--cluster-network=10.4.0.0/16",
    "--service-network=10.5.0.0/16",
)


@pytest.mark.parametrize(
    ("flags", "base", "restricted"),
    [
        ((), None, True),
        (("--flavour=kubeadm", "--image=i"), None, False),
        (("--flavour=kubeadm", "--image=i", *ALL_NETWORKS[:2]), None, False),
        (("--flavour=kubeadm", "--image=i", *ALL_NETWORKS), None, True),
        (("--flavour=kubeadm", "--image=i", "--restrict-destinations"), None, True),
        ((), Plan(restrict_destinations=False), False),
        (ALL_NETWORKS, Plan(restrict_destinations=False), True),
        ((), Plan(), True),
        (("--no-restrict-destinations", *ALL_NETWORKS), Plan(), False),
    ],
)
def test_destinations_are_restricted_where_the_networks_are_known(
    flags: tuple[str, ...], base: Plan | None, restricted: bool
) -> None:
    """OpenShift's installer has defaults for all three; kubeadm knows none of the nodes' networks."""
    assert read(*flags, base=base).restrict_destinations is restricted


@pytest.mark.parametrize(
    ("platform", "networking", "restricted"),
    [("gcp", "", True), ("none", "", False), ("external", "", False), ("none", "10.9.0.0/16", True)],
)
def test_a_machine_network_that_the_installer_does_not_check_is_not_relied_on(
    tmp_path: Path, platform: str, networking: str, restricted: bool
) -> None:
    """On these platforms nodes work outside of it; a written one is the operator's word."""
    text = f"apiVersion: v1\nplatform: {{{platform}: {{}}}}\n"
    if networking:
        text += f"networking: {{machineNetwork: [{{cidr: {networking}}}]}}\n"
    file = tmp_path / "install-config.yaml"
    file.write_text(text)
    assert read("--install-config", str(file)).restrict_destinations is restricted


@pytest.mark.parametrize(
    ("plan", "rules"),
    [
        (Plan(), "10.128.0.0/14,172.30.0.0/16,10.0.0.0/16"),
        (
            Plan(allow_destinations=("192.0.2.1/32:443",)),
            "10.128.0.0/14,172.30.0.0/16,10.0.0.0/16,192.0.2.1/32:443",
        ),
        (Plan(restrict_destinations=False), ""),
        (
            Plan(restrict_destinations=False, allow_destinations=("127.0.0.1/32:443",)),
            "0.0.0.0/0,::/0,127.0.0.1/32:443",
        ),
    ],
)
def test_rules_of_the_agents(plan: Plan, rules: str) -> None:
    """What the plan adds never takes anything away."""
    assert ",".join(plan.agent_destinations) == rules


def test_an_invalid_destination_is_rejected() -> None:
    with pytest.raises(OperatorError, match=r"^--allow-destinations: invalid destination 'webhook.example'"):
        read("--allow-destinations", "webhook.example")


def test_precedence_of_flag_install_config_and_base(tmp_path: Path) -> None:
    file = tmp_path / "install-config.yaml"
    file.write_text(
        "apiVersion: v1\nplatform: {gcp: {}}\n"
        "networking: {machineNetwork: [{cidr: 10.9.0.0/16}], serviceNetwork: [10.8.0.0/16]}\n"
    )
    base = replace(Plan(), platform=Platform.AWS, infra_id="of-the-base")
    plan = read("--install-config", str(file), "--service-network", "10.7.0.0/16", base=base)
    assert plan.platform is Platform.GCP
    assert plan.infra_id == "of-the-base"
    assert list(map(str, plan.networks.machine)) == ["10.9.0.0/16"]
    assert list(map(str, plan.networks.service)) == ["10.7.0.0/16"]


def test_the_installers_variable_gives_the_address_unless_a_flag_does() -> None:
    """`OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP`, as with the installer."""
    environment = {NODE_IP_VARIABLE: "10.0.0.9"}
    assert read(environment=environment).node_ips == (ipaddress.ip_address("10.0.0.9"),)
    assert read("--node-ip", "10.0.0.8", environment=environment).node_ips == (
        ipaddress.ip_address("10.0.0.8"),
    )


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--node-ip", "localhost"], "--node-ip"),
        (["--machine-network", "10.0.0.1/16"], "--machine-network"),
        (["--cluster-network", "10.0.0.0/16,x"], "--cluster-network"),
        (["--cluster-network", "10.0.0.0/16,8"], "hostPrefix"),
        (["--validity", "soon"], "--validity"),
        (["--image", "a b"], "--image"),
        (["--image-is", "bootbridge"], "--image-is"),
        (["--install-config", "/does/not/exist"], "--install-config"),
        (["--platform", "moon"], "--platform"),
    ],
)
def test_an_invalid_flag_is_rejected(argv: list[str], named: str) -> None:
    """The error has the flag."""
    with pytest.raises(OperatorError, match=named):
        read(*argv)
