"""The kubeadm documents generated from a cluster spec or a ticket."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
import yaml

from bootbridge.errors import OperatorError
from bootbridge.node.kubeadm import documents
from tests.node.kubeadm.examples import FAMILIES, PIN, TOKEN, VERSION, instance, spec, ticket

TIMEOUTS = {
    "controlPlaneComponentHealthCheck": "4m0s",
    "kubeletHealthCheck": "4m0s",
    "tlsBootstrap": "2m0s",
    "discovery": "2m0s",
}
NODE_IP = {"ipv4": "10.0.0.5", "ipv6": "fd00:10::5", "dual": "10.0.0.5,fd00:10::5"}
ADVERTISED = {"ipv4": "10.0.0.5", "ipv6": "fd00:10::5", "dual": "10.0.0.5"}


def read(made: tuple[documents.Document, ...]) -> list[dict[str, Any]]:
    """Parses the documents as kubeadm does."""
    return list(yaml.safe_load_all(documents.dump(made)))


def flags(entries: list[dict[str, str]]) -> dict[str, str]:
    assert all(set(entry) == {"name", "value"} for entry in entries)
    return {entry["name"]: entry["value"] for entry in entries}


@pytest.mark.parametrize("families", FAMILIES)
def test_the_init_configuration(families: str) -> None:
    initial, _, _ = read(documents.init_documents(spec(families), instance(families)))
    assert initial == {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "bootstrapTokens": [{"description": "unused", "ttl": "1m0s"}],
        "nodeRegistration": {
            "name": "cp-0",
            "criSocket": "unix:///run/containerd/containerd.sock",
            "kubeletExtraArgs": [{"name": "node-ip", "value": NODE_IP[families]}],
        },
        "localAPIEndpoint": {"advertiseAddress": ADVERTISED[families], "bindPort": 6443},
        "skipPhases": ["preflight", "certs", "show-join-command"],
        "timeouts": TIMEOUTS,
    }


@pytest.mark.parametrize(
    ("families", "endpoint", "services", "pods", "names"),
    [
        ("ipv4", "10.0.0.5:6443", "172.30.0.0/16", "10.128.0.0/14", ["localhost", "127.0.0.1", "10.0.0.5"]),
        (
            "ipv6",
            "[fd00:10::5]:6443",
            "fd00:172:30::/112",
            "fd00:10:128::/48",
            ["localhost", "::1", "fd00:10::5"],
        ),
        (
            "dual",
            "10.0.0.5:6443",
            "172.30.0.0/16,fd00:172:30::/112",
            "10.128.0.0/14,fd00:10:128::/48",
            ["localhost", "127.0.0.1", "::1", "10.0.0.5", "fd00:10::5"],
        ),
    ],
)
def test_the_cluster_configuration(
    families: str, endpoint: str, services: str, pods: str, names: list[str]
) -> None:
    _, cluster, _ = read(documents.init_documents(spec(families), instance(families)))
    server = cluster.pop("apiServer")
    assert cluster == {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "clusterName": "kubernetes",
        "kubernetesVersion": VERSION,
        "controlPlaneEndpoint": endpoint,
        "encryptionAlgorithm": "ECDSA-P256",
        "networking": {"serviceSubnet": services, "podSubnet": pods},
        "controllerManager": {
            "extraArgs": [
                {"name": "profiling", "value": "false"},
                {"name": "terminated-pod-gc-threshold", "value": "1000"},
            ]
        },
        "scheduler": {"extraArgs": [{"name": "profiling", "value": "false"}]},
    }
    assert server["certSANs"] == names
    assert flags(server["extraArgs"]) == {
        "audit-log-maxage": "30",
        "audit-log-maxbackup": "10",
        "audit-log-maxsize": "100",
        "audit-log-path": "/var/log/kubernetes/audit/audit.log",
        "audit-policy-file": "/etc/kubernetes/bootbridge-audit-policy.yaml",
        "kubelet-certificate-authority": "/etc/kubernetes/pki/ca.crt",
        "profiling": "false",
    }
    assert {(v["hostPath"], v["pathType"], v.get("readOnly", False)) for v in server["extraVolumes"]} == {
        ("/var/log/kubernetes/audit", "DirectoryOrCreate", False),
        ("/etc/kubernetes/bootbridge-audit-policy.yaml", "File", True),
    }


def test_the_kubelet_configuration_uses_our_serving_certificate() -> None:
    _, _, kubelet = read(documents.init_documents(spec(), instance()))
    assert kubelet == {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "tlsCertFile": "/var/lib/kubelet/pki/bootbridge-serving.pem",
        "tlsPrivateKeyFile": "/var/lib/kubelet/pki/bootbridge-serving.pem",
        "tlsMinVersion": "VersionTLS13",
    }


def test_the_spec_overrides_kubelet_settings_except_the_certificate() -> None:
    """The API server accepts only kubelet certificates of the cluster CA."""
    wanted = {"cgroupDriver": "cgroupfs", "tlsMinVersion": "VersionTLS12", "tlsCertFile": "/elsewhere"}
    _, _, kubelet = read(documents.init_documents(spec(kubelet=wanted), instance()))
    assert (kubelet["cgroupDriver"], kubelet["tlsMinVersion"]) == ("cgroupfs", "VersionTLS12")
    assert kubelet["tlsCertFile"] == "/var/lib/kubelet/pki/bootbridge-serving.pem"


def test_every_optional_field_of_the_spec_is_applied() -> None:
    chosen = spec(
        name="blue",
        control_plane_endpoint="lb.example:8443",
        api_server_sans=("api.example", "", "10.0.0.5"),
        image_repository="registry.example/k8s",
        etcd_image_tag="3.6.1-0",
        cri_socket="unix:///run/crio/crio.sock",
        without_addons=("coredns", "kube-proxy"),
        ignore_preflight_errors=("Swap",),
    )
    initial, cluster, _ = read(
        documents.init_documents(chosen, instance(provider_id="cloud:///i-1"), patches="/run/patches")
    )
    registration = initial["nodeRegistration"]
    assert registration["criSocket"] == "unix:///run/crio/crio.sock"
    assert flags(registration["kubeletExtraArgs"])["provider-id"] == "cloud:///i-1"
    assert registration["ignorePreflightErrors"] == ["Swap"]
    assert initial["skipPhases"] == [
        "preflight",
        "certs",
        "show-join-command",
        "addon/coredns",
        "addon/kube-proxy",
    ]
    assert initial["patches"] == {"directory": "/run/patches"}
    assert (cluster["clusterName"], cluster["controlPlaneEndpoint"]) == ("blue", "lb.example:8443")
    assert cluster["apiServer"]["certSANs"] == ["localhost", "127.0.0.1", "10.0.0.5", "api.example"]
    assert cluster["imageRepository"] == "registry.example/k8s"
    assert cluster["etcd"] == {"local": {"imageTag": "3.6.1-0", "dataDir": "/var/lib/etcd"}}
    assert (cluster["dns"], cluster["proxy"]) == ({"disabled": True}, {"disabled": True})


@pytest.mark.parametrize("families", FAMILIES)
def test_the_join_configuration_of_a_worker(families: str) -> None:
    (joining,) = read(documents.join_documents(ticket(families)))
    assert joining == {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": "lb.example:6443",
                "token": TOKEN,
                "caCertHashes": [PIN],
            }
        },
        "nodeRegistration": {
            "name": "node-1",
            "criSocket": "unix:///run/containerd/containerd.sock",
            "kubeletExtraArgs": [{"name": "node-ip", "value": NODE_IP[families]}],
        },
        "timeouts": TIMEOUTS,
    }


@pytest.mark.parametrize("families", FAMILIES)
def test_the_join_configuration_of_a_control_plane(families: str) -> None:
    (worker,) = read(documents.join_documents(ticket(families)))
    (joining,) = read(documents.join_documents(ticket(families, control_plane=True)))
    assert joining.pop("controlPlane") == {
        "localAPIEndpoint": {"advertiseAddress": ADVERTISED[families], "bindPort": 6443}
    }
    assert joining.pop("skipPhases") == ["control-plane-prepare/download-certs"]
    assert joining == worker


def test_a_ticket_without_a_ca_hash_is_rejected() -> None:
    with pytest.raises(OperatorError, match="required field missing"):
        documents.join_documents(ticket(ca_certificate_hashes=()))


# --- addresses


def test_a_dual_stack_machine_uses_the_address_families_of_the_cluster_in_order() -> None:
    both = instance("dual")
    for families, wanted in {"ipv4": "10.0.0.5", "ipv6": "fd00:10::5"}.items():
        initial, _, _ = read(documents.init_documents(spec(families), both))
        assert flags(initial["nodeRegistration"]["kubeletExtraArgs"])["node-ip"] == wanted
    turned = spec("dual", service_subnets=("fd00:172:30::/112", "172.30.0.0/16"))
    initial, _, _ = read(documents.init_documents(turned, both))
    assert flags(initial["nodeRegistration"]["kubeletExtraArgs"])["node-ip"] == "fd00:10::5,10.0.0.5"
    assert initial["localAPIEndpoint"]["advertiseAddress"] == "fd00:10::5"


def test_the_first_address_of_each_family_is_used() -> None:
    """The kubelet accepts one address per family."""
    many = tuple(map(ip_address, ("10.0.0.5", "192.168.0.5", "fd00:10::5", "fd00:11::5")))
    initial, _, _ = read(documents.init_documents(spec("dual"), instance(addresses=many)))
    assert flags(initial["nodeRegistration"]["kubeletExtraArgs"])["node-ip"] == "10.0.0.5,fd00:10::5"


@pytest.mark.parametrize("addresses", [(), (ip_address("fd00:10::5"),)])
def test_a_machine_without_an_address_of_the_cluster_family_is_rejected(addresses: tuple[Any, ...]) -> None:
    with pytest.raises(OperatorError, match=r"no IPv4 address.*serviceSubnets"):
        documents.init_documents(spec(), instance(addresses=addresses))


# --- names


@pytest.mark.parametrize(
    ("given", "name"), [("node-1", "node-1"), ("NODE-1", "node-1"), ("node_1", "node-1"), ("a.b-c", "a.b-c")]
)
def test_the_node_name_is_the_normalised_instance_name(given: str, name: str) -> None:
    initial, _, _ = read(documents.init_documents(spec(), instance(name=given)))
    (joining,) = read(documents.join_documents(ticket(node_name=given)))
    assert initial["nodeRegistration"]["name"] == joining["nodeRegistration"]["name"] == name


@pytest.mark.parametrize("given", ["", "-node", "node.", "no de", "knoten-ä"])
def test_an_invalid_node_name_is_rejected(given: str) -> None:
    with pytest.raises(OperatorError, match="invalid node name"):
        documents.init_documents(spec(), instance(name=given))
    with pytest.raises(OperatorError, match="invalid node name"):
        documents.join_documents(ticket(node_name=given))


def test_the_audit_policy_logs_requests_without_bodies() -> None:
    assert documents.audit_policy()["rules"] == [{"level": "Metadata"}]


def test_text_that_looks_like_a_number_stays_text() -> None:
    """A token may consist of digits only."""
    digits = replace(ticket(), token="123456.0123456789012345")
    (joining,) = read(documents.join_documents(digits))
    assert joining["discovery"]["bootstrapToken"]["token"] == digits.token
    assert b'"123456.0123456789012345"' in documents.dump(documents.join_documents(digits))


@pytest.mark.parametrize("families", FAMILIES)
@pytest.mark.parametrize("provider_id", ["", "cloud:///i-1"])
def test_init_and_join_documents_describe_the_same_machine_identically(
    families: str, provider_id: str
) -> None:
    """Otherwise the first node could lack a flag that later nodes have."""
    initial = documents.init_documents(
        spec(families, ignore_preflight_errors=("Swap",)),
        instance(families, name="node-1", provider_id=provider_id),
    )[0]
    (joining,) = documents.join_documents(
        ticket(families, provider_id=provider_id, ignore_preflight_errors=("Swap",), control_plane=True)
    )
    assert initial["nodeRegistration"] == joining["nodeRegistration"]
    assert initial["localAPIEndpoint"] == joining["controlPlane"]["localAPIEndpoint"]
    assert initial["timeouts"] == joining["timeouts"]
