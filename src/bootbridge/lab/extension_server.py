"""The program in the lab's pods that an API server calls.

It serves a validating webhook (denies `deny=true`), a mutating webhook (adds an annotation), the conversion
of a custom resource between two versions, and an aggregated API with one resource. It listens for HTTPS, and
for plain HTTP from the API server's pod and Service proxy.
"""

from __future__ import annotations

import argparse
import base64
import json
import socket
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from bootbridge.demo.webhook import BODY_BYTES_MAX, InvalidReview, review

GROUP = "lab.bootbridge.dev"
API_GROUP = f"greetings.{GROUP}"
MUTATED = f"{GROUP}/mutated"
CRD_VERSIONS = ("v1", "v2")
# The server closes the connection after a response on this path, so that the next request dials again.
ONCE = "/once"


def mutate(body: bytes) -> dict[str, Any]:
    """Returns a response that allows the object and adds the annotation MUTATED."""
    request = json.loads(body)["request"]
    annotations = ((request.get("object") or {}).get("metadata") or {}).get("annotations")
    key = MUTATED.replace("~", "~0").replace("/", "~1")
    patch = [] if annotations else [{"op": "add", "path": "/metadata/annotations", "value": {}}]
    patch.append({"op": "add", "path": f"/metadata/annotations/{key}", "value": "true"})
    response = {
        "uid": request["uid"],
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def convert(body: bytes) -> dict[str, Any]:
    """Converts widgets: `spec.size` in v1 is `spec.dimensions.size` in v2."""
    request = json.loads(body)["request"]
    wanted = request["desiredAPIVersion"]
    response = {
        "uid": request["uid"],
        "result": {"status": "Success"},
        "convertedObjects": [_converted(each, wanted) for each in request["objects"]],
    }
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response}


def _converted(found: dict[str, Any], wanted: str) -> dict[str, Any]:
    spec = found.get("spec") or {}
    size = spec.get("size", (spec.get("dimensions") or {}).get("size"))
    as_wanted = {"size": size} if wanted.endswith("/v1") else {"dimensions": {"size": size}}
    return {**found, "apiVersion": wanted, "spec": as_wanted}


def api_answer(path: str, who: str) -> dict[str, Any] | None:
    """Returns the response of the aggregated API: discovery, or one object per namespace."""
    version = f"{API_GROUP}/v1"
    if path == f"/apis/{API_GROUP}":
        preferred = {"groupVersion": version, "version": "v1"}
        return {
            "apiVersion": "v1",
            "kind": "APIGroup",
            "name": API_GROUP,
            "versions": [preferred],
            "preferredVersion": preferred,
        }
    if path == f"/apis/{version}":
        resource = {"name": "greetings", "singularName": "greeting", "namespaced": True, "kind": "Greeting"}
        resources = [{**resource, "verbs": ["get", "list"]}]
        return {
            "apiVersion": "v1",
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": resources,
        }
    if path.startswith(f"/apis/{version}/namespaces/") and path.endswith("/greetings/hello"):
        namespace = path.split("/")[5]
        metadata = {"name": "hello", "namespace": namespace}
        return {"apiVersion": version, "kind": "Greeting", "metadata": metadata, "servedBy": who}
    return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == ONCE:
            self.close_connection = True
        if path in ("/", "/healthz", ONCE):
            return self._reply(200, f"hello from {socket.gethostname()}\n".encode(), "text/plain")
        answer = api_answer(path.rstrip("/"), socket.gethostname())
        if answer is None:
            return self._reply(404, b"{}")
        return self._reply(200, json.dumps(answer).encode())

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            self.close_connection = True
            return self._reply(413, b"{}")
        body = self.rfile.read(int(length))
        seen_from = str(self.client_address[0]).removeprefix("::ffff:")
        answers = {"/validate": lambda: review(body, seen_from), "/mutate": lambda: mutate(body)}
        answers["/convert"] = lambda: convert(body)
        answer = answers.get(self.path.partition("?")[0])
        if answer is None:
            return self._reply(404, b"{}")
        try:
            return self._reply(200, json.dumps(answer()).encode())
        except (InvalidReview, ValueError, KeyError, TypeError, AttributeError) as error:
            return self._reply(400, json.dumps({"error": repr(error)}).encode())

    def _reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs every request with the client's address."""
        sys.stdout.write(f"{self.client_address[0]} {format % args}\n")
        sys.stdout.flush()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        # One socket for both families, unless the kernel has no IPv6.
        both = socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if both else socket.AF_INET
        super().__init__(("::" if both else "0.0.0.0", port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer.server_bind would look the host name up in DNS.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(10)
        if self._tls is None:
            return super().finish_request(request, client_address)
        with self._tls.wrap_socket(request, server_side=True) as secured:
            return super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        sys.stdout.write(f"{client_address[0]} {type(sys.exc_info()[1]).__name__}: {sys.exc_info()[1]}\n")
        sys.stdout.flush()


def main() -> int:
    """Serves until it is stopped by a signal."""
    parser = argparse.ArgumentParser(prog="extension-server", description=__doc__)
    parser.add_argument("--port", type=int, default=8443)
    parser.add_argument("--plain-port", type=int, default=8080)
    parser.add_argument("--tls", default="/tls", help="directory with tls.crt and tls.key")
    flags = parser.parse_args()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(f"{flags.tls}/tls.crt", f"{flags.tls}/tls.key")
    threading.Thread(target=_Server(flags.plain_port, None).serve_forever, daemon=True).start()
    _Server(flags.port, tls).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
