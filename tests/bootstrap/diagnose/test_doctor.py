"""`bootbridge doctor` on a node with a real server and real agents: each break has its name and its fix."""

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
from bootbridge.trust.authority import Authority, Certificate
from tests.bootstrap.diagnose.doctor_node import Json, LaidNode, laid_node
from tests.support.process_program import until


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaidNode]:
    with laid_node(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def node(laid: LaidNode) -> Iterator[LaidNode]:
    """Works before the test, and is made to work again after it."""
    # Agents of the test before may still be leaving.
    until(lambda: laid.doctor()["works"], "the tunnel works", 60)
    yield laid
    laid.mend()


def broken(document: Json, step: str, evidence: str, fix: str) -> None:
    """That this step, and no step before it, is broken, with these words in what is said."""
    found = document["broken"]
    assert found is not None, document["steps"]
    assert found["name"] == step, found
    assert evidence in found["evidence"], found
    assert fix in found["fix"], found
    names = [each["name"] for each in document["steps"]]
    at = names.index(step)
    assert not [each for each in document["steps"][:at] if each["verdict"] == "broken"]
    assert {each["verdict"] for each in document["steps"][at + 1 :]} <= {"not-reached"}


def test_a_tunnel_that_works_is_walked_to_its_end(node: LaidNode) -> None:
    """Every step is taken, in order, and nothing is broken."""
    document = node.doctor()
    assert [each["name"] for each in document["steps"]] == [name for _, name, _ in STEPS]
    unknown = [each["name"] for each in document["steps"] if each["verdict"] != "ok"]
    assert unknown == ["destination", "dial", "destination-tls"]
    assert "2 connected: node0, node1" in json.dumps(document)


def test_people_get_a_line_per_step_and_the_fix_last(node: LaidNode) -> None:
    """Also when something is broken: what is behind it is said to be not reached."""
    node.path(node.plan.paths.egress_config).unlink()
    assert node.run("doctor") == 2
    lines = node.stdout.splitlines()
    assert lines[-1].startswith("Fix: run `bootbridge up`")
    assert lines[-2].startswith("The first broken hop is the kube-apiserver (egress-config)")
    assert sum(line.startswith("not-reached") for line in lines) == len(STEPS) - 5


# --- kube-apiserver


def rewrite(path: Path, text: str) -> None:
    """At once: the kubelet must not see half of it."""
    write_file(path, Asset(text.encode(), 0o600))


def edit_manifest(node: LaidNode, change: Callable[[list[str]], list[str]]) -> None:
    manifest = node.path(node.plan.paths.apiserver_pod)
    pod = yaml.safe_load(manifest.read_text())
    container = pod["spec"]["containers"][0]
    container["command"] = change(container["command"])
    count = len(node.node.kubelet.history)
    rewrite(manifest, yaml.safe_dump(pod))
    until(lambda: "started kube-apiserver" in node.node.kubelet.history[count:], "the kubelet restarts it")


def without(prefix: str) -> Callable[[list[str]], list[str]]:
    return lambda words: [word for word in words if not word.startswith(prefix)]


def test_an_apiserver_without_egress_selector(node: LaidNode) -> None:
    """It would dial pods directly."""
    edit_manifest(node, without("--egress-selector-config-file"))
    broken(node.doctor(), "egress-selector", "has no egress selector", "bootbridge up")


def test_an_apiserver_with_another_egress_configuration(node: LaidNode, tmp_path: Path) -> None:
    """Whose it is, is said."""
    other = tmp_path / "other.yaml"
    other.touch()
    flag = "--egress-selector-config-file"
    edit_manifest(node, lambda words: [*without(flag)(words), f"{flag}={other}"])
    broken(node.doctor(), "egress-selector", str(other), "bootbridge/apiserver/egress-selector.yaml")
    edit_manifest(node, without(flag))


def test_an_apiserver_without_endpoint_routing(node: LaidNode) -> None:
    """It would ask agents for service addresses."""
    edit_manifest(node, without("--enable-aggregator-routing"))
    broken(node.doctor(), "endpoint-routing", "service addresses, not pods", "bootbridge up")


def test_an_egress_configuration_that_the_apiserver_refuses(node: LaidNode) -> None:
    """In the words of its own validation."""
    path = node.path(node.plan.paths.egress_config)
    path.write_text(path.read_text().replace("udsName", "udsPath"))
    broken(node.doctor(), "egress-config", "udsPath", "bootbridge up")


def test_an_egress_configuration_that_leads_elsewhere(node: LaidNode) -> None:
    """To another socket than the server's."""
    path = node.path(node.plan.paths.egress_config)
    path.write_text(path.read_text().replace("konnectivity-server.socket", "other.socket"))
    broken(node.doctor(), "egress-config", "other.socket", "bootbridge up")


def test_no_apiserver_at_all(node: LaidNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others on this machine are not taken for it."""
    from bootbridge.bootstrap.diagnose.doctor import programs

    monkeypatch.setattr(programs, "called", lambda name: [])
    broken(node.doctor(), "apiserver-runs", "no kube-apiserver runs", "systemctl restart kubelet")


def test_a_node_without_a_tunnel(tmp_path: Path, laid: LaidNode) -> None:
    """Is told from one with a broken tunnel."""
    assert laid.run("doctor", "--json", "--root", str(tmp_path)) == 2
    broken(json.loads(laid.stdout), "plan-record", "no tunnel was laid here", "bootbridge up")


# --- certificates


def put_certificates(node: LaidNode, authority: Authority, server: Certificate) -> None:
    bundle = certificates.LogBundle(authority.cert_pem, server, authority.issue_client("konnectivity-agent"))
    for path, asset in certificates.files(node.plan, bundle).items():
        write_file(node.path(path), asset)


def test_expired_certificates(node: LaidNode) -> None:
    """With the time at which they expired."""
    authority = Authority.create("bootbridge-signer")
    put_certificates(node, authority, authority.issue_server(["127.0.0.1"], validity=timedelta(seconds=-60)))
    broken(node.doctor(), "certificate-expiry", "expired at 20", "makes all certificates")


def test_a_certificate_for_another_address(node: LaidNode) -> None:
    """The node got another address after the certificates were made."""
    node.address_is(ip_address("127.0.0.1"), ip_address("192.0.2.77"))
    broken(node.doctor(), "certificate-addresses", "this node is 192.0.2.77", "makes all certificates")


def test_a_key_that_is_not_the_certificates(node: LaidNode) -> None:
    """Or a certificate of somebody else."""
    stranger = Authority.create("stranger").issue_server(["127.0.0.1"])
    node.path(node.plan.paths.server_key).write_bytes(stranger.key_pem)
    broken(node.doctor(), "certificates", "do not match", "makes all certificates")


def test_a_key_that_others_can_read(node: LaidNode) -> None:
    """It has been open; it is to be replaced, not only closed."""
    node.path(node.plan.paths.agent_key).chmod(0o644)
    broken(node.doctor(), "certificates", "0644, readable by others", "makes all certificates")


# --- server and socket


def test_a_server_that_does_not_run(node: LaidNode) -> None:
    """Without its static pod there is nobody to start it."""
    node.path(node.plan.paths.server_pod).unlink()
    until(lambda: not server_pids(node), "the server is gone")
    broken(node.doctor(), "server-runs", "konnectivity-server-pod.yaml is not there", "bootbridge up")


def test_a_server_that_cannot_start_points_to_its_log(node: LaidNode) -> None:
    """The kubelet has the manifest, but no process stays."""
    pod, good = node.path(node.plan.paths.server_pod), set(server_pids(node))
    rewrite(pod, pod.read_text().replace("--server-port=0", "--server-port=nonsense"))
    until(lambda: not good & set(server_pids(node)), "the good server is gone")
    broken(node.doctor(), "server-runs", "though the kubelet has", "crictl logs")


def test_a_socket_that_was_removed(node: LaidNode) -> None:
    """The server does not notice."""
    node.path(node.plan.paths.socket).unlink()
    broken(node.doctor(), "socket", "is missing, though the server runs", "makes the socket when it starts")
    os.kill(server_pids(node)[0], signal.SIGKILL)


def test_a_stale_socket(node: LaidNode) -> None:
    """The file is there, nobody listens on it."""
    import socket

    path = node.path(node.plan.paths.socket)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    broken(node.doctor(), "socket", "is stale", "makes the socket when it starts")
    os.kill(server_pids(node)[0], signal.SIGKILL)


def test_a_server_of_the_other_protocol(node: LaidNode) -> None:
    """Found by asking the socket, not by believing a file."""
    pod = node.path(node.plan.paths.server_pod)
    before = server_pids(node)
    rewrite(pod, pod.read_text().replace("--mode=grpc", "--mode=http-connect"))
    until(lambda: server_pids(node) not in ([], before), "the server is another")
    until(lambda: node.doctor()["broken"]["name"] == "protocol", "its socket is there")
    broken(node.doctor(), "protocol", "speaks GRPC, the server understands HTTPConnect", "--mode=grpc")


def server_pids(node: LaidNode) -> list[int]:
    from bootbridge.common.host import Host

    return Host(node.node.root).processes_with_argument(f"--uds-name={node.path(node.plan.paths.socket)}")


# --- agents


def test_no_daemonset(node: LaidNode) -> None:
    """Somebody deleted it."""
    node.api.call("DELETE", f"/apis/apps/v1/namespaces/{node.plan.namespace}/daemonsets/konnectivity-agent")
    until(lambda: not node.api.held("daemonsets", node.plan.namespace, "konnectivity-agent"), "it is gone")
    broken(node.doctor(), "agent-daemonset", "is not there: no node runs an agent", "bootbridge up")


def test_no_node_for_an_agent(node: LaidNode) -> None:
    """It is not the tunnel's fault: nodes have to join first."""
    node.api.nodes = ()
    for name in ("konnectivity-agent-node0", "konnectivity-agent-node1"):
        node.api.call(
            "DELETE", f"/api/v1/namespaces/{node.plan.namespace}/pods/{name}", {"gracePeriodSeconds": 0}
        )
    broken(node.doctor(), "agent-daemonset", "there is no node for one yet", "kubectl get nodes")


def change_secret(node: LaidNode, **data: bytes) -> None:
    held = node.api.objects[("secrets", node.plan.namespace, node.plan.secret_name)]
    held["data"] |= {name.replace("_", "."): base64.b64encode(value).decode() for name, value in data.items()}


def test_a_secret_with_another_authority(node: LaidNode) -> None:
    """Left over from an earlier tunnel."""
    change_secret(node, ca_crt=Authority.create("earlier").cert_pem)
    broken(node.doctor(), "agent-secret", "another authority than the server's", "bootbridge up")


def test_a_secret_with_an_expired_certificate(node: LaidNode) -> None:
    """Of the right authority, but too old: only the Secret's, not the node's."""
    earlier = Authority.create("bootbridge-signer").issue_client("agent", validity=timedelta(seconds=-60))
    change_secret(node, tls_crt=earlier.cert_pem)
    broken(node.doctor(), "agent-secret", "the agents' certificate expired at", "bootbridge up")


def test_pods_that_admission_refuses(node: LaidNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason stands in an event alone."""
    no_pods(node, monkeypatch)
    message = 'pods "konnectivity-agent-x" is forbidden: violates PodSecurity "restricted:latest"'
    node.put("events", node.plan.namespace, "e1", reason="FailedCreate", message=message)
    broken(node.doctor(), "agent-pods", "violates PodSecurity", "admission refuses the pods")


def no_pods(node: LaidNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller makes none, but still wants some."""
    monkeypatch.setattr(node.api, "_reconcile_daemonset", lambda key, found: None)
    for key in [key for key in node.api.objects if key[:2] == ("pods", node.plan.namespace)]:
        del node.api.objects[key]


@pytest.mark.parametrize(
    ("reason", "fix"),
    [("ImagePullBackOff", "cannot pull the image"), ("CrashLoopBackOff", "kubectl logs --previous")],
)
def test_pods_that_do_not_start(
    node: LaidNode, monkeypatch: pytest.MonkeyPatch, reason: str, fix: str
) -> None:
    """With the kubelet's reason."""
    no_pods(node, monkeypatch)
    waiting = {"state": {"waiting": {"reason": reason, "message": "back-off"}}}
    labels = {"labels": node.plan.agent_labels, "annotations": {"kubernetes.io/config.mirror": "1"}}
    status = {"phase": "Pending", "containerStatuses": [waiting]}
    node.put("pods", node.plan.namespace, "konnectivity-agent-x", metadata=labels, status=status, spec={})
    broken(node.doctor(), "agent-pods", f"{reason}: back-off", fix)


LOST = "E1 server not reached: dial tcp 192.0.2.1:8091: i/o timeout"
MISTRUSTED = "E1 server not reached: certificate verify failed"


@pytest.mark.parametrize(
    ("log", "evidence", "fix"),
    [
        (LOST, "i/o timeout", "is filtered between the nodes and this one"),
        (MISTRUSTED, "certificate verify failed", "mistrust each other"),
        ("", "may be filtered", "bootbridge doctor --from-node 127.0.0.1"),
    ],
)
def test_agents_that_run_but_are_not_connected(
    node: LaidNode, monkeypatch: pytest.MonkeyPatch, log: str, evidence: str, fix: str
) -> None:
    """What the agents' own logs say decides; without them the port is to be tried from a node."""
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
    node.api.faults.append(lambda method, path: answer if path.endswith("/log") else None)
    until(lambda: node.node.kubelet.pids and node.doctor()["broken"], "the agents are gone")
    until(lambda: node.doctor()["broken"]["name"] == "agents-connected", "no agent is left")
    broken(node.doctor(), "agents-connected", evidence, fix)


def test_an_api_that_does_not_answer_leaves_steps_unknown(node: LaidNode) -> None:
    """The rest is walked all the same: the server knows its agents."""
    node.api.faults.append(lambda method, path: "drop")
    document = node.doctor()
    verdicts = {each["name"]: each["verdict"] for each in document["steps"]}
    assert verdicts["agent-daemonset"] == verdicts["agent-secret"] == verdicts["agent-pods"] == "unknown"
    assert verdicts["agents-connected"] == "ok"
    assert document["works"]


# --- bad input


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--to", "10.0.0.1"), ("--to", "'10.0.0.1' is no HOST:PORT", "[fd01::7]:8443")),
        (("--to", "10.0.0.1:http"), ("--to", "is no HOST:PORT")),
        (("--to", "a:1", "--webhook", "b"), ("one destination at a time",)),
        (("--timeout", "soon"), ("--timeout", "'soon' is no duration")),
        (("--kubeconfig", "/nowhere/kubeconfig"), ("/nowhere/kubeconfig",)),
        (("--from-node", "bootstrap"), ("--from-node", "'bootstrap' is no IP address")),
        (("--from-node", "10.0.0.1:port"), ("--from-node", "has no valid port")),
    ],
)
def test_bad_input_is_one_clear_error(laid: LaidNode, flags: tuple[str, ...], words: tuple[str, ...]) -> None:
    """Exit code 1, one line, naming the flag."""
    assert laid.run("doctor", *flags) == 1
    assert [word for word in words if word not in laid.output] == []
    assert laid.output.count("\n") == 1
    assert "Traceback" not in laid.output


def test_an_unknown_webhook_is_named(node: LaidNode) -> None:
    """With what may be named instead."""
    broken(node.doctor("--webhook", "nobody"), "destination", "has no 'nobody'", "APIService")


def test_nothing_secret_is_said(node: LaidNode) -> None:
    """Neither in the table nor in JSON, whatever was read."""
    key = node.path(node.plan.paths.agent_key).read_text().splitlines()[1]
    node.run("doctor")
    assert key not in node.output
    node.run("doctor", "--json")
    assert key not in node.output
