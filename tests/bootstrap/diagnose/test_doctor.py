"""`bootbridge doctor` with a real server and real agents: each fault is reported with its name and fix."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml

from bootbridge.bootstrap.diagnose.doctor.steps import STEPS
from bootbridge.bootstrap.machine import certificates
from bootbridge.common.files import Asset, write_file
from bootbridge.kube.errors import KubeError
from bootbridge.trust.authority import Authority, Certificate
from tests.bootstrap.diagnose.doctor_node import InstalledNode, Json
from tests.support.fake_api_objects import failing
from tests.support.fake_api_server import drop
from tests.support.process_program import until


@pytest.fixture
def node(installed: InstalledNode) -> Iterator[InstalledNode]:
    """Works before each test, and is repaired after it."""
    # Agents of the previous test may still be stopping.
    until(lambda: installed.doctor()["works"], "the tunnel works", 60)
    yield installed
    installed.repair()


def broken(document: Json, step: str, evidence: str, fix: str) -> None:
    """Asserts that this step is the first broken one, with these words in evidence and fix."""
    found = document["broken"]
    assert found is not None, document["steps"]
    assert found["name"] == step, found
    assert evidence in found["evidence"], found
    assert fix in found["fix"], found
    names = [each["name"] for each in document["steps"]]
    at = names.index(step)
    assert not [each for each in document["steps"][:at] if each["verdict"] == "broken"]
    assert {each["verdict"] for each in document["steps"][at + 1 :]} <= {"not-reached"}


def test_a_working_tunnel_passes_all_steps_in_order(node: InstalledNode) -> None:
    document = node.doctor()
    assert [each["name"] for each in document["steps"]] == [name for _, name, _ in STEPS]
    unknown = [each["name"] for each in document["steps"] if each["verdict"] != "ok"]
    assert unknown == ["destination-tls"]
    assert "2 connected: node0, node1" in json.dumps(document)


def test_the_table_has_one_line_per_step_then_the_fix_and_the_next_command(node: InstalledNode) -> None:
    """Steps after the broken one are not reached."""
    node.path(node.plan.paths.egress_config).unlink()
    assert node.run("doctor") == 2
    lines = node.stdout.splitlines()
    answer = lines.index("", len(STEPS)) + 1
    assert lines[answer].startswith("The first broken hop is the kube-apiserver (egress-config)")
    assert lines[answer + 1].startswith("Fix: run `bootbridge up`")
    assert lines[answer + 2 : answer + 4] == ["", "Next:"]
    assert lines[answer + 4].split()[:2] == ["bootbridge", "doctor"]
    assert sum(line.startswith("not-reached") for line in lines) == len(STEPS) - 5


# --- kube-apiserver


def rewrite(path: Path, text: str) -> None:
    """Atomically: the kubelet must not read a partial file."""
    write_file(path, Asset(text.encode(), 0o600))


def edit_manifest(node: InstalledNode, change: Callable[[list[str]], list[str]]) -> None:
    manifest = node.path(node.plan.paths.apiserver_pod)
    pod = yaml.safe_load(manifest.read_text())
    container = pod["spec"]["containers"][0]
    container["command"] = change(container["command"])
    count = len(node.node.kubelet.history)
    rewrite(manifest, yaml.safe_dump(pod))
    until(lambda: "started kube-apiserver" in node.node.kubelet.history[count:], "the kubelet restarts it")


def without(prefix: str) -> Callable[[list[str]], list[str]]:
    return lambda words: [word for word in words if not word.startswith(prefix)]


def test_an_apiserver_without_egress_selector(node: InstalledNode) -> None:
    """The kube-apiserver would dial pods directly."""
    edit_manifest(node, without("--egress-selector-config-file"))
    broken(node.doctor(), "egress-selector", "has no egress selector", "bootbridge up")


def test_an_apiserver_with_another_egress_configuration(node: InstalledNode, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.touch()
    flag = "--egress-selector-config-file"
    edit_manifest(node, lambda words: [*without(flag)(words), f"{flag}={other}"])
    broken(node.doctor(), "egress-selector", str(other), "bootbridge/apiserver/egress-selector.yaml")
    edit_manifest(node, without(flag))


def test_an_apiserver_without_endpoint_routing(node: InstalledNode) -> None:
    """The kube-apiserver would dial service addresses."""
    edit_manifest(node, without("--enable-aggregator-routing"))
    broken(node.doctor(), "endpoint-routing", "service addresses, not pods", "bootbridge up")


def test_an_invalid_egress_configuration(node: InstalledNode) -> None:
    path = node.path(node.plan.paths.egress_config)
    path.write_text(path.read_text().replace("udsName", "udsPath"))
    broken(node.doctor(), "egress-config", "udsPath", "bootbridge up")


def test_an_egress_configuration_with_another_socket(node: InstalledNode) -> None:
    path = node.path(node.plan.paths.egress_config)
    path.write_text(path.read_text().replace("konnectivity-server.socket", "other.socket"))
    broken(node.doctor(), "egress-config", "other.socket", "bootbridge up")


def test_no_apiserver_at_all(node: InstalledNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kube-apiservers on this machine do not count."""
    from bootbridge.bootstrap.diagnose.doctor import processes

    monkeypatch.setattr(processes, "named", lambda name: [])
    broken(node.doctor(), "apiserver-runs", "no kube-apiserver is running", "systemctl restart kubelet")


def test_a_node_without_a_tunnel(tmp_path: Path, installed: InstalledNode) -> None:
    assert installed.run("doctor", "--json", "--root", str(tmp_path)) == 2
    broken(
        json.loads(installed.stdout),
        "plan-record",
        "the tunnel is not installed on this node",
        "bootbridge up",
    )


# --- certificates


def put_certificates(node: InstalledNode, authority: Authority, server: Certificate) -> None:
    bundle = certificates.CertificateSet(
        authority.cert_pem, server, authority.issue_client("konnectivity-agent")
    )
    for path, asset in certificates.files(node.plan, bundle).items():
        write_file(node.path(path), asset)


def test_expired_certificates(node: InstalledNode) -> None:
    authority = Authority.create("bootbridge-signer")
    put_certificates(node, authority, authority.issue_server(["127.0.0.1"], validity=timedelta(seconds=-60)))
    broken(node.doctor(), "certificate-expiry", "expired at 20", "replaces all certificates")


def test_a_certificate_for_another_address(node: InstalledNode) -> None:
    """The node's address has changed since the certificates were issued."""
    node.address_is(ip_address("127.0.0.1"), ip_address("192.0.2.77"))
    broken(
        node.doctor(), "certificate-addresses", "not for this node's 192.0.2.77", "replaces all certificates"
    )


def test_a_key_that_does_not_match_its_certificate(node: InstalledNode) -> None:
    other = Authority.create("other").issue_server(["127.0.0.1"])
    node.path(node.plan.paths.server_key).write_bytes(other.key_pem)
    broken(node.doctor(), "certificates", "certificate and key do not match", "replaces all certificates")


def test_a_key_that_others_can_read(node: InstalledNode) -> None:
    """It must be replaced: it has been exposed."""
    node.path(node.plan.paths.agent_key).chmod(0o644)
    broken(node.doctor(), "certificates", "0644, readable by others", "replaces all certificates")


# --- server and socket


def test_a_server_without_its_static_pod(node: InstalledNode) -> None:
    node.path(node.plan.paths.server_pod).unlink()
    until(lambda: not server_pids(node), "the server is gone")
    broken(node.doctor(), "server-runs", "konnectivity-server-pod.yaml does not exist", "bootbridge up")


def test_a_server_that_cannot_start_refers_to_its_log(node: InstalledNode) -> None:
    pod, good = node.path(node.plan.paths.server_pod), set(server_pids(node))
    rewrite(pod, pod.read_text().replace("--server-port=0", "--server-port=nonsense"))
    until(lambda: not good & set(server_pids(node)), "the good server is gone")
    broken(node.doctor(), "server-runs", "although", "crictl logs")


def test_a_socket_that_was_removed(node: InstalledNode) -> None:
    node.path(node.plan.paths.socket).unlink()
    broken(
        node.doctor(),
        "socket",
        "does not exist, although the server is running",
        "creates the socket at its start",
    )
    os.kill(server_pids(node)[0], signal.SIGKILL)


def test_a_stale_socket(node: InstalledNode) -> None:
    import socket

    path = node.path(node.plan.paths.socket)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    broken(node.doctor(), "socket", "is stale", "creates the socket at its start")
    os.kill(server_pids(node)[0], signal.SIGKILL)


def test_a_server_of_the_other_protocol(node: InstalledNode) -> None:
    """Detected on the socket, not from a file."""
    pod = node.path(node.plan.paths.server_pod)
    before = server_pids(node)
    rewrite(pod, pod.read_text().replace("--mode=grpc", "--mode=http-connect"))
    until(lambda: server_pids(node) not in ([], before), "the server is another")
    until(lambda: node.doctor()["broken"]["name"] == "protocol", "its socket is there")
    broken(node.doctor(), "protocol", "uses GRPC, the server HTTPConnect", "--mode=grpc")


def server_pids(node: InstalledNode) -> list[int]:
    from bootbridge.common.host import Host

    return Host(node.node.root).processes_with_argument(f"--uds-name={node.path(node.plan.paths.socket)}")


# --- agents


def test_no_daemonset(node: InstalledNode) -> None:
    node.api.call("DELETE", f"/apis/apps/v1/namespaces/{node.plan.namespace}/daemonsets/konnectivity-agent")
    until(lambda: not node.api.held("daemonsets", node.plan.namespace, "konnectivity-agent"), "it is gone")
    broken(node.doctor(), "agent-daemonset", "does not exist: no node runs an agent", "bootbridge up")


def test_no_node_for_an_agent(node: InstalledNode) -> None:
    node.api.nodes = ()
    for name in ("konnectivity-agent-node0", "konnectivity-agent-node1"):
        node.api.call(
            "DELETE", f"/api/v1/namespaces/{node.plan.namespace}/pods/{name}", {"gracePeriodSeconds": 0}
        )
    broken(node.doctor(), "agent-daemonset", "there are no nodes yet", "kubectl get nodes")


def change_secret(node: InstalledNode, **data: bytes) -> None:
    held = node.api.objects[("secrets", node.plan.namespace, node.plan.secret_name)]
    held["data"] |= {name.replace("_", "."): base64.b64encode(value).decode() for name, value in data.items()}


def test_a_secret_with_another_authority(node: InstalledNode) -> None:
    """Left over from an earlier installation."""
    change_secret(node, ca_crt=Authority.create("earlier").cert_pem)
    broken(node.doctor(), "agent-secret", "another CA than the server's", "bootbridge up")


def test_a_secret_with_an_expired_certificate(node: InstalledNode) -> None:
    earlier = Authority.create("bootbridge-signer").issue_client("agent", validity=timedelta(seconds=-60))
    change_secret(node, tls_crt=earlier.cert_pem)
    broken(node.doctor(), "agent-secret", "the agents' certificate expired at", "bootbridge up")


def test_pods_that_admission_denies(node: InstalledNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is only in an event."""
    no_pods(node, monkeypatch)
    message = 'pods "konnectivity-agent-x" is forbidden: violates PodSecurity "restricted:latest"'
    node.put("events", node.plan.namespace, "e1", reason="FailedCreate", message=message)
    broken(node.doctor(), "agent-pods", "violates PodSecurity", "admission denies the pods")


def no_pods(node: InstalledNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The DaemonSet controller creates no pods, although some are scheduled."""
    monkeypatch.setattr(node.api, "_reconcile_daemonset", lambda key, found: None)
    for key in [key for key in node.api.objects if key[:2] == ("pods", node.plan.namespace)]:
        del node.api.objects[key]


@pytest.mark.parametrize(
    ("reason", "fix"),
    [("ImagePullBackOff", "cannot pull the image"), ("CrashLoopBackOff", "kubectl logs --previous")],
)
def test_pods_that_do_not_start(
    node: InstalledNode, monkeypatch: pytest.MonkeyPatch, reason: str, fix: str
) -> None:
    no_pods(node, monkeypatch)
    waiting = {"state": {"waiting": {"reason": reason, "message": "back-off"}}}
    labels = {"labels": node.plan.agent_labels, "annotations": {"kubernetes.io/config.mirror": "1"}}
    status = {"phase": "Pending", "containerStatuses": [waiting]}
    node.put("pods", node.plan.namespace, "konnectivity-agent-x", metadata=labels, status=status, spec={})
    broken(node.doctor(), "agent-pods", f"{reason}: back-off", fix)


LOST = "E1 server not reached: dial tcp 192.0.2.1:8091: i/o timeout"
UNTRUSTED = "E1 server not reached: certificate verify failed"


@pytest.mark.parametrize(
    ("log", "evidence", "fix"),
    [
        (LOST, "i/o timeout", "a firewall blocks TCP"),
        (UNTRUSTED, "certificate verify failed", "reject each other's certificate"),
        ("", "a firewall may block", "bootbridge doctor --from-node 127.0.0.1"),
    ],
)
def test_agents_that_run_but_are_not_connected(
    node: InstalledNode, monkeypatch: pytest.MonkeyPatch, log: str, evidence: str, fix: str
) -> None:
    """The agents' logs give the reason; without them the fix is a test from a node."""
    no_pods(node, monkeypatch)
    labels = {"labels": node.plan.agent_labels, "annotations": {"kubernetes.io/config.mirror": "1"}}
    node.put(
        "pods",
        node.plan.namespace,
        "konnectivity-agent-x",
        metadata=labels,
        status={"phase": "Running"},
        spec={},
    )
    answer = (200, "", log) if log else (500, "InternalError", "No agent available")
    node.api.faults.append(failing("GET", "/log", KubeError(*answer)))
    until(lambda: node.node.kubelet.pids and node.doctor()["broken"], "the agents are gone")
    until(lambda: node.doctor()["broken"]["name"] == "agents-connected", "no agent is left")
    broken(node.doctor(), "agents-connected", evidence, fix)


def test_an_unreachable_api_server_leaves_steps_unknown(node: InstalledNode) -> None:
    """The other steps run: the server lists its agents."""
    node.api.faults.append(drop)
    document = node.doctor()
    verdicts = {each["name"]: each["verdict"] for each in document["steps"]}
    assert verdicts["agent-daemonset"] == verdicts["agent-secret"] == verdicts["agent-pods"] == "unknown"
    assert verdicts["agents-connected"] == "ok"
    assert document["works"]


# --- bad input


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--to", "10.0.0.1"), ("--to", "invalid HOST:PORT '10.0.0.1'", "[fd01::7]:8443")),
        (("--to", "10.0.0.1:http"), ("--to", "invalid HOST:PORT")),
        (("--to", "a:1", "--webhook", "b"), ("mutually exclusive",)),
        (("--timeout", "soon"), ("--timeout", "invalid duration 'soon'")),
        (("--kubeconfig", "/nowhere/kubeconfig"), ("/nowhere/kubeconfig",)),
        (("--from-node", "bootstrap"), ("--from-node", "invalid IP address 'bootstrap'")),
        (("--from-node", "10.0.0.1:port"), ("--from-node", "invalid port")),
    ],
)
def test_an_invalid_flag_is_a_one_line_error(
    installed: InstalledNode, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert installed.run("doctor", *flags) == 1
    assert [word for word in words if word not in installed.output] == []
    assert installed.output.count("\n") == 1
    assert "Traceback" not in installed.output


def test_an_unknown_webhook_is_named(node: InstalledNode) -> None:
    broken(
        node.doctor("--webhook", "unknown"),
        "destination",
        "not found in the cluster: 'unknown'",
        "APIService",
    )


def test_no_key_is_printed(node: InstalledNode) -> None:
    key = node.path(node.plan.paths.agent_key).read_text().splitlines()[1]
    node.run("doctor")
    assert key not in node.output
    node.run("doctor", "--json")
    assert key not in node.output
