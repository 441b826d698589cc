"""A fake API server with controllers: namespaces, Secrets, Pods, DaemonSets, injected faults.

Its controllers create a pod per node for a DaemonSet, count the ready ones, and delete the content of a
deleted namespace unless the test marks it as stuck.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from bootbridge.trust.authority import Authority

Json = dict[str, Any]
Key = tuple[str, str, str]  # plural, namespace, name
# Given method and path: None to answer as usual, a status with reason and message, "drop" or "hang".
Fault = Callable[[str, str], tuple[int, str, str] | str | None]
TOKEN = "token-of-the-administrator"
KINDS = {
    "namespaces": "Namespace",
    "secrets": "Secret",
    "pods": "Pod",
    "daemonsets": "DaemonSet",
    "configmaps": "ConfigMap",
}


class RefusedError(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class FakeClusterApi:
    """Runs on a thread of its own; `call` is what a controller or a kubelet would do to it."""

    def __init__(self, folder: Path, nodes: tuple[str, ...] = ("node0", "node1")) -> None:
        self.nodes = nodes
        self.objects: dict[Key, Json] = {}
        self.faults: list[Fault] = []
        self.stuck: dict[str, str] = {}  # namespace: what its condition says
        self.requests: list[tuple[str, str]] = []
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._ended = threading.Event()
        for name in ("default", "kube-system"):
            self.call("PATCH", f"/api/v1/namespaces/{name}", {"metadata": {"name": name}})
        self.authority = Authority.create("kubernetes")
        self._server = self._listen(folder)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, port: int = 0) -> Json:
        ca = base64.b64encode(self.authority.cert_pem).decode()
        server = f"https://127.0.0.1:{port or self.port}"
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": ca}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
        }

    def names(self) -> list[str]:
        with self._lock:
            return sorted("/".join(key) for key in self.objects)

    def held(self, plural: str, namespace: str, name: str) -> Json | None:
        with self._lock:
            return copy.deepcopy(self.objects.get((plural, namespace, name)))

    # --- REST

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        try:
            with self._lock:
                answer = self._answer(method, urlsplit(path), body)
                self._reconcile()
                return 200, copy.deepcopy(answer)
        except RefusedError as error:
            return error.status, {
                "kind": "Status",
                "code": error.status,
                "reason": error.reason,
                "message": str(error),
            }

    def _answer(self, method: str, url: Any, body: Json | None) -> Json:
        if url.path in ("/version", "/readyz"):
            return {"major": "1", "minor": "33"}
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        plural, namespace, name, sub = _place(url.path)
        if not name:
            if method == "POST":
                assert body
                return self._put((plural, namespace, body["metadata"]["name"]), body, query)
            return self._list(plural, namespace, query.get("labelSelector", ""))
        key = (plural, namespace, name)
        if sub == "status":
            self.objects[key]["status"] = (body or {})["status"]
            return self.objects[key]
        if method == "PATCH":
            given = body or {}
            if "spec" not in given and key in self.objects and plural == "configmaps":
                given = {**self.objects[key], "data": {**self.objects[key]["data"], **given["data"]}}
            return self._put(key, given, query)
        if key not in self.objects:
            raise RefusedError(404, "NotFound", f'{plural} "{name}" not found')
        return self._delete(key, body or {}) if method == "DELETE" else self.objects[key]

    def _list(self, plural: str, namespace: str, selector: str) -> Json:
        wanted = dict(pair.split("=") for pair in selector.split(",") if pair)
        items = [
            found
            for (kind, place, _), found in sorted(self.objects.items())
            if kind == plural
            and (not namespace or place == namespace)
            and wanted.items() <= (found["metadata"].get("labels") or {}).items()
        ]
        return {"kind": f"{KINDS[plural]}List", "items": items}

    def _put(self, key: Key, manifest: Json, query: dict[str, str]) -> Json:
        plural, namespace, _ = key
        if plural != "namespaces":
            self._check_namespace(namespace)
        before = self.objects.get(key)
        after = copy.deepcopy(manifest)
        held = (before or {}).get("metadata", {})
        changed = before is None or any(
            before.get(field) != after.get(field) for field in after if field != "metadata"
        )
        after["kind"] = KINDS[plural]
        after["metadata"] = {
            "uid": held.get("uid", f"uid-{next(self._numbers)}"),
            **{k: v for k, v in held.items() if k in ("deletionTimestamp",)},
            **after["metadata"],
            "generation": held.get("generation", 0) + changed,
            "resourceVersion": str(next(self._numbers)) if changed else held["resourceVersion"],
        }
        if plural == "namespaces":
            after["status"] = (before or {}).get("status", {"phase": "Active"})
        elif before and "status" in before:
            after["status"] = before["status"]
        if query.get("dryRun") != "All":
            self.objects[key] = after
        return after

    def _check_namespace(self, namespace: str) -> None:
        found = self.objects.get(("namespaces", "", namespace))
        if found is None:
            raise RefusedError(404, "NotFound", f'namespaces "{namespace}" not found')
        if found["status"]["phase"] == "Terminating":
            raise RefusedError(403, "Forbidden", f"namespace {namespace} is being terminated")

    def _delete(self, key: Key, options: Json) -> Json:
        found = self.objects[key]
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != found["metadata"]["uid"]:
            raise RefusedError(409, "Conflict", "the UID in the precondition does not match")
        if key[0] == "daemonsets":
            for pod in self._keys("pods", key[1]):
                self.objects[pod]["metadata"]["deletionTimestamp"] = "now"
        if key[0] in ("secrets", "daemonsets") or options.get("gracePeriodSeconds") == 0:
            del self.objects[key]
        else:
            found["metadata"]["deletionTimestamp"] = "now"
        return found

    # --- what controllers do

    def _reconcile(self) -> None:
        for key, found in list(self.objects.items()):
            if key[0] == "daemonsets":
                self._reconcile_daemonset(key, found)
        for key, found in list(self.objects.items()):
            if key[0] == "namespaces" and "deletionTimestamp" in found["metadata"]:
                self._finalise(key, found)

    def _reconcile_daemonset(self, key: Key, found: Json) -> None:
        _, namespace, name = key
        names = [f"{name}-{node}" for node in self.nodes]
        for node, pod_name in zip(self.nodes, names, strict=True):
            template = found["spec"]["template"]
            pod = {
                "metadata": {**template["metadata"], "name": pod_name, "namespace": namespace},
                "spec": {**template["spec"], "nodeName": node},
            }
            held = self.objects.get(("pods", namespace, pod_name))
            if held is None or "deletionTimestamp" not in held["metadata"]:
                self._put(("pods", namespace, pod_name), pod, {})
        ready = sum(_is_ready(self.objects[pod]) for pod in self._keys("pods", namespace, names))
        found["status"] = {
            "desiredNumberScheduled": len(self.nodes),
            "numberReady": ready,
            "updatedNumberScheduled": ready,
            "observedGeneration": found["metadata"]["generation"],
        }

    def _finalise(self, key: Key, found: Json) -> None:
        name = key[2]
        found["status"]["phase"] = "Terminating"
        if name in self.stuck:
            condition = {"type": "NamespaceContentRemaining", "status": "True", "message": self.stuck[name]}
            found["status"]["conditions"] = [condition]
            return
        inside = [other for other in self.objects if other[1] == name]
        for other in inside:
            self.objects[other]["metadata"]["deletionTimestamp"] = "now"
            if other[0] != "pods":
                del self.objects[other]
        if not any(other[1] == name for other in self.objects):
            del self.objects[key]

    def _keys(self, plural: str, namespace: str, names: list[str] | None = None) -> list[Key]:
        return [
            key
            for key in self.objects
            if key[:2] == (plural, namespace) and (names is None or key[2] in names)
        ]

    # --- HTTP

    def _listen(self, folder: Path) -> ThreadingHTTPServer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.authority.issue_server(["127.0.0.1"]).write(folder, "apiserver"))
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body in one segment: two would cost 40 ms each time (Nagle and delayed ACKs).
            wbufsize = -1
            disable_nagle_algorithm = True
            timeout = 30

            def setup(self) -> None:
                # In the connection's thread, so that a slow handshake delays no other.
                self.request.settimeout(self.timeout)
                self.request = context.wrap_socket(self.request, server_side=True)
                super().setup()

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, answer = api._serve(self.command, self.path, body, self.headers)
                if status == 0:
                    self.close_connection = True
                    return
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_PATCH = do_PUT = do_DELETE = do_GET

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            address_family = socket.AF_INET

            def handle_error(self, *_: object) -> None:
                pass

        return Server(("127.0.0.1", 0), Handler)

    def _serve(self, method: str, path: str, body: Json | None, headers: Any) -> tuple[int, Json]:
        plain = unquote(urlsplit(path).path)
        with self._lock:
            self.requests.append((method, plain))
        for fault in list(self.faults):
            answer = fault(method, plain)
            if answer == "hang":
                self._ended.wait(60)
            if answer in ("drop", "hang"):
                return 0, {}
            if isinstance(answer, tuple):
                status, reason, message = answer
                return status, {"kind": "Status", "code": status, "reason": reason, "message": message}
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"kind": "Status", "code": 401, "reason": "Unauthorized", "message": "Unauthorized"}
        if method == "PATCH" and "apply-patch" in headers["Content-Type"] and "fieldManager=" not in path:
            return 400, {"kind": "Status", "code": 400, "message": "fieldManager is required"}
        return self.call(method, path, body)


def _place(path: str) -> tuple[str, str, str, str]:
    """plural, namespace, name, subresource of an API path."""
    words = [unquote(word) for word in path.strip("/").split("/")]
    words = words[2:] if words[0] == "api" else words[3:]
    if words[0] == "namespaces" and len(words) > 2 and words[2] in KINDS:
        namespace, words = words[1], words[2:]
    else:
        namespace = ""
    name, sub = [*words[1:3], "", ""][:2]
    return words[0], namespace, name, sub


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
