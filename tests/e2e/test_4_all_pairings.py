"""All traffic of an API server into the cluster, with our programs, Konnectivity's, and mixed pairs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bootbridge.demo.webhook import DENIAL
from bootbridge.lab import workloads
from bootbridge.lab.extension_server import API_GROUP, GROUP, MUTATED
from tests.e2e import timed_requests
from tests.e2e.results import Results
from tests.support.lab import GUARDED, Cluster, Pairing

# Neighbours differ in one program: the server restarts twice per protocol, not four times.
PAIRINGS = [
    Pairing("our", "our", "GRPC"),
    Pairing("our", "Go", "GRPC"),
    Pairing("Go", "Go", "GRPC"),
    Pairing("Go", "our", "GRPC"),
    Pairing("Go", "our", "HTTPConnect"),
    Pairing("Go", "Go", "HTTPConnect"),
    Pairing("our", "Go", "HTTPConnect"),
    Pairing("our", "our", "HTTPConnect"),
]
BYTES = 100 * 1000 * 1000
NAMESPACE = f"--namespace={workloads.NAMESPACE}"
_FORWARDED = re.compile(rb":(\d+) ->")

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("installed_pairing")]


@pytest.fixture(scope="package", params=PAIRINGS, ids=lambda each: each.slug)
def installed_pairing(request: pytest.FixtureRequest, cluster: Cluster) -> Pairing:
    """Installs each pairing; pytest runs all tests of one before the next."""
    pairing: Pairing = request.param
    cluster.install_tunnel(pairing)
    return pairing


@pytest.fixture
def pods(cluster: Cluster, installed_pairing: Pairing) -> dict[str, str]:
    """Node → the extension server's pod there."""
    return cluster.extension_pods()


@dataclass(frozen=True)
class Payload:
    path: Path
    digest: str


@pytest.fixture(scope="package")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Payload:
    """100 MB of incompressible data."""
    path = tmp_path_factory.mktemp("payload") / "payload"
    path.write_bytes(os.urandom(BYTES))
    return Payload(path, _digest(path))


@pytest.fixture
def remote(installed_pairing: Pairing) -> str:
    """The path of the payload in a pod; different for each pairing, so that a missing copy is noticed."""
    return f"/tmp/{installed_pairing.slug}"


def test_validating_webhook(cluster: Cluster) -> None:
    """A validating webhook allows and denies."""
    allowed = cluster.create(workloads.pod("reviewed", GUARDED), "--dry-run=server")
    denied = cluster.create(workloads.pod("reviewed", GUARDED, {"deny": "true"}), "--dry-run=server")
    assert allowed.returncode == 0, allowed.stderr
    assert DENIAL in denied.stderr


def test_mutating_webhook(cluster: Cluster) -> None:
    """A mutating webhook adds an annotation."""
    done = cluster.create(workloads.config_map("marked", GUARDED), "--dry-run=server", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metadata"]["annotations"][MUTATED] == "true"


def test_crd_conversion(cluster: Cluster) -> None:
    """A custom resource stored as v1 is read as v2."""
    cluster.apply(workloads.widget("wheel", GUARDED, 7))
    found = cluster.get(f"widgets.v2.{GROUP}", "wheel", f"--namespace={GUARDED}")
    assert found["spec"] == {"dimensions": {"size": 7}}


def test_aggregated_api(cluster: Cluster) -> None:
    """An aggregated API is available and answers.

    Checked together: right after the tunnel has changed, the APIService's condition may still be the one of
    the previous tunnel.
    """
    path = f"/apis/{API_GROUP}/v1/namespaces/{GUARDED}/greetings/hello"
    hello = {"name": "hello", "namespace": GUARDED}

    def is_available_and_answers() -> bool:
        answer = cluster.kubectl("get", "--raw", path, check=False)
        answered = answer.returncode == 0 and json.loads(answer.stdout)["metadata"] == hello
        return answered and _is_available(cluster)

    cluster.until(is_available_and_answers, "the APIService is available and answers")


def test_logs_follow(cluster: Cluster, pods: dict[str, str], installed_pairing: Pairing) -> None:
    """`kubectl logs -f` shows a line as it is written."""
    for pod in pods.values():
        _request_with_mark(cluster, pod, "before")
        with cluster.running("logs", "-f", "--tail=1", pod, NAMESPACE) as logs:
            output = _reader_of(logs)
            cluster.until(output, "the last line of before appears")
            _request_until_logged(cluster, output, pod, f"followed-{installed_pairing.slug}")


def test_attach(cluster: Cluster, pods: dict[str, str]) -> None:
    """`kubectl attach` shows new output of the container."""
    pod = pods["node1"]
    with cluster.running("attach", pod, NAMESPACE) as attached:
        _request_until_logged(cluster, _reader_of(attached), pod, "attached")


def test_exec(cluster: Cluster, pods: dict[str, str]) -> None:
    """`kubectl exec` on every node: output, input and exit code."""
    script = "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.exit(7)"
    for pod in pods.values():
        words = ("exec", "-i", pod, NAMESPACE, "--", "/usr/lib/bootbridge/bin/python3", "-c", script)
        done = cluster.kubectl(*words, input=b"through the tunnel", check=False)
        assert (done.returncode, done.stdout) == (7, "THROUGH THE TUNNEL")


def test_cp_into_a_pod(cluster: Cluster, pods: dict[str, str], payload: Payload, remote: str) -> None:
    """`kubectl cp` of 100 MB into a pod."""
    place = f"{workloads.NAMESPACE}/{pods['node2']}:{remote}"
    cluster.kubectl("cp", str(payload.path), place, seconds=300)
    script = f"import hashlib; print(hashlib.file_digest(open({remote!r}, 'rb'), 'sha256').hexdigest())"
    assert _python(cluster, pods["node2"], script) == payload.digest


def test_cp_out_of_a_pod(
    cluster: Cluster, pods: dict[str, str], payload: Payload, remote: str, tmp_path: Path
) -> None:
    """`kubectl cp` of 100 MB out of a pod."""
    copy = tmp_path / "copy"
    cluster.kubectl("cp", f"{workloads.NAMESPACE}/{pods['node2']}:{remote}", str(copy), seconds=300)
    assert _digest(copy) == payload.digest
    copy.unlink()
    _python(cluster, pods["node2"], f"import os; os.remove({remote!r})")


def test_port_forward(cluster: Cluster, pods: dict[str, str]) -> None:
    """`kubectl port-forward` reaches the pod."""
    with cluster.running("port-forward", pods["node1"], NAMESPACE, f":{workloads.PLAIN_PORT}") as forward:
        output = _reader_of(forward)
        cluster.until(lambda: _FORWARDED.search(output()), "kubectl prints the forwarded port")
        port = _FORWARDED.findall(output())[0].decode()
        assert pods["node1"] in cluster.on_bootstrap(f"http://127.0.0.1:{port}/")


def test_pod_proxy(cluster: Cluster, pods: dict[str, str]) -> None:
    """The API server's proxy to each pod."""
    for pod in pods.values():
        path = f"/api/v1/namespaces/{workloads.NAMESPACE}/pods/{pod}:{workloads.PLAIN_PORT}/proxy/"
        assert pod in cluster.raw(path)


def test_service_proxy(cluster: Cluster, pods: dict[str, str]) -> None:
    """The API server's proxy to the Service."""
    path = f"/api/v1/namespaces/{workloads.NAMESPACE}/services/{workloads.SERVICE}:http/proxy/"
    answer = cluster.raw(path)
    assert any(pod in answer for pod in pods.values()), answer


def test_a_thousand_admissions(cluster: Cluster, installed_pairing: Pairing, results: Results) -> None:
    """1,000 admissions, one after the other, each decided by the webhook."""
    results.add_latency(
        f"through the tunnel, {installed_pairing.name}, {installed_pairing.protocol}",
        timed_requests.measure(cluster),
    )


def _is_available(cluster: Cluster) -> bool:
    conditions = cluster.get("apiservice", workloads.API_SERVICE)["status"]["conditions"]
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)


def _request_with_mark(cluster: Cluster, pod: str, mark: str) -> None:
    """Sends a request with `mark` in its path, which the pod logs."""
    path = f"/api/v1/namespaces/{workloads.NAMESPACE}/pods/{pod}:{workloads.PLAIN_PORT}/proxy/healthz?{mark}"
    cluster.raw(path)


def _request_until_logged(cluster: Cluster, output: Callable[[], bytes], pod: str, mark: str) -> None:
    def appears() -> bool:
        _request_with_mark(cluster, pod, mark)
        return mark.encode() in output()

    cluster.until(appears, f"{mark!r} appears")


def _reader_of(process: subprocess.Popen[bytes]) -> Callable[[], bytes]:
    """Returns a function that returns all output so far, without blocking."""
    assert process.stdout is not None
    stream, received = process.stdout, bytearray()
    os.set_blocking(stream.fileno(), False)

    def output() -> bytes:
        received.extend(stream.read() or b"")
        return bytes(received)

    return output


def _python(cluster: Cluster, pod: str, script: str) -> str:
    """Runs Python code in a pod and returns its output."""
    words = ("exec", pod, NAMESPACE, "--", "/usr/lib/bootbridge/bin/python3", "-c", script)
    return cluster.kubectl(*words).stdout.strip()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
