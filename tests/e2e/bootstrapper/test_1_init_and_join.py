"""Blank instances form a cluster: one is initialised, the others join, each attested by a TPM quote."""

from __future__ import annotations

import stat
import sys

import pytest

from bootbridge.lab.instances import operator_files
from bootbridge.node.node_paths import PKI
from tests.e2e.bootstrapper.conftest import SPARE, Inits
from tests.support.lab import SHORT_PAUSES, WAIT_SECONDS, until
from tests.support.lab_instances import Instances

pytestmark = pytest.mark.e2e

JOINING = ("node2", "node3", SPARE)
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
GET = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"


def test_an_init_with_a_wrong_secret_is_rejected(blank: Instances) -> None:
    files = operator_files(blank.lab)
    wrong = files.directory / "wrong-secret"
    wrong.write_text("not the secret at all, but as long as one")
    wrong.chmod(0o600)
    done = blank.init(f"--init-secret-file={wrong}")
    assert done.returncode == 1
    assert "secret" in done.stderr
    assert not files.kubeconfig.exists()
    blank.until_logged("node1", "wrong init secret")


def test_the_operator_gets_a_kubeconfig_with_mode_0600(cluster: Instances) -> None:
    kubeconfig = operator_files(cluster.lab).kubeconfig
    assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
    assert "node1" in cluster.nodes()


def test_a_second_init_is_rejected_at_once_while_one_is_running(inits: Inits, cluster: Instances) -> None:
    assert inits.second.returncode == 1
    assert "instance rejected the request: another init is running" in inits.second.stderr
    assert 'init rejected reason="another init is running' in cluster.log("node1")
    assert not (operator_files(cluster.lab).directory / "second.conf").exists()


def test_every_stage_of_the_init_is_printed(inits: Inits, cluster: Instances) -> None:
    for stage in ("verified by tpm", "certs", "control-plane", "join-service"):
        assert stage in inits.first.stderr


def test_the_other_instances_join_without_an_operator_in_their_roles(cluster: Instances) -> None:
    """Concurrently: a control plane, and two workers that do not wait for it."""
    cluster.until(lambda: cluster.ready("node1", *JOINING), "all four nodes are ready", 400.0)
    roles = {
        node["metadata"]["name"]: "node-role.kubernetes.io/control-plane" in node["metadata"]["labels"]
        for node in cluster.get("nodes")["items"]
    }
    assert roles == {"node1": True, "node2": True, "node3": False, SPARE: False}


def test_the_join_service_reaches_the_tpm_through_its_helper_only(cluster: Instances) -> None:
    """In containers of a real kubelet: the helper has the TPM's socket, and made the quotes of the joins."""
    pods = cluster.get("pods", "--namespace=kube-system", "--selector=app=bootbridge-join-service")["items"]
    assert pods
    for pod in pods:
        service, helper = sorted(pod["spec"]["containers"], key=lambda each: each["name"] == "tpm-helper")
        assert helper["name"] == "tpm-helper"
        mounted = [[mount["name"] for mount in each["volumeMounts"]] for each in (service, helper)]
        assert ["tpm" in names for names in mounted] == [False, True]
        assert not helper["securityContext"]["privileged"]
    name = next(pod["metadata"]["name"] for pod in pods if pod["spec"]["nodeName"] == "node1")
    logs = cluster.kubectl("logs", "--namespace=kube-system", name, "--container=tpm-helper")
    assert "tpm-helper: listening" in logs
    assert "command refused" not in logs


def test_a_second_control_plane_runs_every_component(cluster: Instances) -> None:
    """Its API server is ready, and its etcd is a voting member."""
    wanted = {f"{component}-node2" for component in CONTROL_PLANE}

    def running() -> bool:
        pods = cluster.get("pods", "--namespace=kube-system")["items"]
        return wanted <= {pod["metadata"]["name"] for pod in pods}

    cluster.until(running, f"{', '.join(wanted)} run")
    cluster.until(
        lambda: cluster.lab.apiserver_is_ready(cluster.components, "node2"), "its API server is ready"
    )
    metrics = cluster.run("node2", sys.executable, "-c", GET, "http://127.0.0.1:2381/metrics").stdout
    assert "etcd_server_is_learner 0" in metrics
    assert "etcd_server_has_leader 1" in metrics


def test_every_instance_is_measured_and_reports_it(cluster: Instances) -> None:
    # A node may be ready before its bootstrapper has written the last line.
    for name in JOINING:
        cluster.until(lambda name=name: cluster.status(name)["phase"] == "done", f"{name} is done")
    found = {name: cluster.status(name) for name in ("node1", *JOINING)}
    assert found["node1"]["phase"] == "done"
    assert {each["lock"] for name, each in found.items() if name != "node1"} == {"join"}
    assert found["node1"]["lock"] == "init"
    # All instances of one cluster have the same measurement, which is not zero.
    assert len({each["register"] for each in found.values()}) == 1
    assert found["node1"]["register"].strip("0")
    assert all(each["healthy"] for each in found.values())


def test_every_ticket_is_audited_with_the_attested_key(cluster: Instances) -> None:
    cluster.until(cluster.join_service_log, "every join service logs")
    listed = {entry["name"]: entry["identity"] for entry in cluster.policy()["instances"]}
    for name in JOINING:
        issued = [entry for entry in cluster.audited(name) if entry["outcome"] == "issued"]
        assert {entry["identity"] for entry in issued} == {listed[name]}


def test_kubelets_have_serving_certificates_of_the_cluster(
    cluster: Instances,
) -> None:
    """The API server accepts no others when it connects to a kubelet, for example for logs."""
    for name in ("node1", *JOINING):
        path = f"/api/v1/nodes/{name}/proxy/healthz"
        cluster.until(lambda path=path: cluster.kubectl("get", "--raw", path) == "ok", f"{name} answers")


def test_an_init_secret_creates_only_one_cluster(cluster: Instances) -> None:
    """The instance no longer listens for an init, and stays the node that it is."""
    other = operator_files(cluster.lab).directory / "other.conf"
    cluster.until_logged("node1", "cluster created")
    before = cluster.status("node1")
    assert (before["phase"], before["lock"]) == ("done", "init")
    done = cluster.init(f"--kubeconfig={other}", "--timeout=1s")
    assert done.returncode == 1
    assert "Connection refused" in done.stderr, "reachable, but without a listener"
    assert not other.exists()
    assert cluster.status("node1") == before
    assert cluster.ready("node1")


def test_no_secret_is_in_a_log_a_command_line_or_a_file_readable_by_others(
    cluster: Instances, spare: str
) -> None:
    """Command lines are read during a join, because kubeadm's exist only while it runs."""
    arguments: set[str] = set()

    def seen(text: str) -> bool:
        arguments.update(cluster.arguments(spare))
        return text in cluster.log(spare)

    with cluster.kubeadm_paused_after_preflight(spare) as resume:
        cluster.start_bootstrapper(spare)
        until(lambda: seen("stage done stage=preflight"), f"{spare} is joining", WAIT_SECONDS, SHORT_PAUSES)
        assert seen("joining node=")
        resume()
        until(lambda: seen("cluster joined"), f"{spare} joins", WAIT_SECONDS, SHORT_PAUSES)
    assert [each for each in arguments if "kubeadm join" in each], "kubeadm was observed"
    secrets = cluster.secrets("node1", *JOINING, spare)
    logs = {
        str(path): path.read_text(errors="replace")
        for path in (cluster.lab.directory / "logs").rglob("*.log")
    }
    logs["join service"] = cluster.join_service_log()
    assert "init started" in cluster.log("node1")
    assert any(cluster.log("node1") == text for text in logs.values()), "these are the logs of the lab"
    assert '"outcome": "issued"' in logs["join service"]
    for name in ("node1", *JOINING, spare):
        arguments |= cluster.arguments(name)
    for what, secret in secrets.items():
        assert not [name for name, text in logs.items() if secret in text], what
        assert not [line for line in arguments if secret in line], what
    known = cluster.lab.file("node1", f"{PKI}/ca.crt").read_text().splitlines()[1]
    for name in ("node1", *JOINING, spare):
        assert cluster.open_files_with({"the authority's certificate": known}, name), (
            "the search covers these files"
        )
        assert cluster.open_files_with(secrets, name) == []
