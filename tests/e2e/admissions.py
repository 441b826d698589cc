"""Admissions one after the other on one connection to an API server, each timed.

Run as a program inside a node's network: `python -m tests.e2e.admissions URL COUNT < pem and object`.
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


def measure(cluster: Cluster, node: str = "bootstrap") -> list[float]:
    """Seconds that each of 1,000 pods took to be admitted, as a dry run, by the API server of a node."""
    given = json.dumps(
        {
            "kubeconfig": cluster.lab.file(node, ADMIN_KUBECONFIG).read_text(),
            "pod": workloads.pod("measured", GUARDED),
        }
    )
    argv = ["env", "-C", str(ROOT), sys.executable, "-m", "tests.e2e.admissions"]
    space = cluster.lab.space(node)
    done = space.run(argv, network_only=True, input=given.encode(), timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    seconds: list[float] = json.loads(done.stdout)
    assert len(seconds) == COUNT
    return seconds


def main() -> int:
    given = json.load(sys.stdin)
    connection = _connection(yaml.safe_load(given["kubeconfig"]))
    body = json.dumps(given["pod"])
    for _ in range(WARM_UP):
        _admit(connection, body)
    json.dump([_admit(connection, body) for _ in range(COUNT)], sys.stdout)
    return 0


def _admit(connection: http.client.HTTPSConnection, body: str) -> float:
    started = time.perf_counter()
    path = f"/api/v1/namespaces/{GUARDED}/pods?dryRun=All"
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 201:
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
