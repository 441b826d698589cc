"""Sends the same request many times over one connection to a kube-apiserver and times each.

Runs as a program in a node's network namespace: `python -m tests.e2e.timed_requests`, with JSON on stdin.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import sys
import tempfile
import time
from urllib.parse import urlsplit

import yaml

from bootbridge.lab import workloads
from bootbridge.lab.credentials import ADMIN_KUBECONFIG
from tests.support.lab import GUARDED, Cluster
from tests.support.process_program import ROOT

COUNT = 1000
WARM_UP = 20
SECONDS_MAX = 300.0

# Method, path, body and expected status.
Request = tuple[str, str, str | None, int]


def measure(cluster: Cluster, node: str = "bootstrap") -> list[float]:
    """Returns the seconds for each of 1,000 pod admissions, as a dry run, by the API server of a node."""
    path = f"/api/v1/namespaces/{GUARDED}/pods?dryRun=All"
    body = json.dumps(workloads.pod("measured", GUARDED))
    return _seconds(cluster, node, WARM_UP + COUNT, ("POST", path, body, 201))[WARM_UP:]


def fetch(cluster: Cluster, node: str, path: str, times: int) -> None:
    """Sends the same GET request several times to the API server of a node."""
    _seconds(cluster, node, times, ("GET", path, None, 200))


def _seconds(cluster: Cluster, node: str, times: int, request: Request) -> list[float]:
    """Returns the seconds of each request; asserts the expected status."""
    kubeconfig = cluster.lab.file(node, ADMIN_KUBECONFIG).read_text()
    given = json.dumps({"kubeconfig": kubeconfig, "times": times, "request": request})
    argv = ["env", "-C", str(ROOT), sys.executable, "-m", "tests.e2e.timed_requests"]
    namespaces = cluster.lab.namespaces(node)
    done = namespaces.run(argv, network_only=True, input=given.encode(), timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    seconds: list[float] = json.loads(done.stdout)
    assert len(seconds) == times
    return seconds


def main() -> int:
    given = json.load(sys.stdin)
    connection = _connection(yaml.safe_load(given["kubeconfig"]))
    json.dump([_ask(connection, *given["request"]) for _ in range(given["times"])], sys.stdout)
    return 0


def _ask(
    connection: http.client.HTTPSConnection, method: str, path: str, body: str | None, status: int
) -> float:
    started = time.perf_counter()
    connection.request(method, path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != status:
        raise SystemExit(f"refused with {answer.status}: {text[:500]!r}")
    return time.perf_counter() - started


def _connection(kubeconfig: dict) -> http.client.HTTPSConnection:  # type: ignore[type-arg]
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    context = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority-data").decode())
    with tempfile.NamedTemporaryFile() as both:
        both.write(_pem(user, "client-certificate-data") + _pem(user, "client-key-data"))
        both.flush()
        context.load_cert_chain(both.name)
    url = urlsplit(cluster["server"])
    return http.client.HTTPSConnection(url.hostname or "", url.port, context=context, timeout=60)


def _pem(holder: dict, name: str) -> bytes:  # type: ignore[type-arg]
    return base64.b64decode(holder[name])


if __name__ == "__main__":
    sys.exit(main())
