"""Sends requests that need admission to an API server, and prints each result as a JSON line.

Runs on a lab node as a separate program: `admission_client.py KUBECONFIG NAMESPACE [PORT [STREAMS]]`. Each
stream sends its requests in sequence. Standard library only.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# Longer than every timeout of the API server, so that a request that exceeds those is noticed.
TIMEOUT_SECONDS = 60.0
PAUSE_SECONDS = 0.1


def main(kubeconfig: str, namespace: str, port: str = "", streams: str = "1") -> None:
    host, context = _access(json.loads(Path(kubeconfig).read_bytes()), port)
    threads = [
        threading.Thread(target=_send, args=(host, context, namespace, stream), daemon=True)
        for stream in range(int(streams))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _send(host: str, context: ssl.SSLContext, namespace: str, stream: int) -> None:
    for number in range(1_000_000):
        deniable = number % 5 == 4
        name = f"load-{stream}-{time.time_ns()}"
        kind, body = _pod(name) if deniable else _config_map(name)
        started = time.monotonic()
        status, answer = _post(host, context, f"/api/v1/namespaces/{namespace}/{kind}", body)
        message = answer.get("message", "") if status != 201 else json.dumps(answer["metadata"])
        took = time.monotonic() - started
        line = {"stream": stream, "at": started, "seconds": took, "deniable": deniable}
        try:
            # One write for a whole line, because streams share the pipe.
            sys.stdout.write(json.dumps({**line, "status": status, "message": message}) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            # The test has ended and closed the pipe.
            return
        time.sleep(PAUSE_SECONDS)


def _access(config: dict[str, Any], port: str) -> tuple[str, ssl.SSLContext]:
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=_decoded(cluster["certificate-authority-data"]))
    with tempfile.NamedTemporaryFile("w", dir="/run") as pair:
        pair.write(_decoded(user["client-certificate-data"]) + _decoded(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    # Over loopback, so that a request survives a change of the node's address.
    return f"127.0.0.1:{port or urlsplit(cluster['server']).port}", context


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


def _post(host: str, context: ssl.SSLContext, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Returns status and body; status 0 if there was no response."""
    connection = http.client.HTTPSConnection(host, context=context, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, {"message": repr(error)}
    finally:
        connection.close()


def _config_map(name: str) -> tuple[str, dict[str, Any]]:
    return "configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def _pod(name: str) -> tuple[str, dict[str, Any]]:
    """Returns a pod that the validating webhook denies."""
    metadata = {"name": name, "labels": {"deny": "true"}}
    containers = [{"name": "none", "image": "localhost/none"}]
    return "pods", {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": containers},
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
