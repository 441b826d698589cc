"""A validating admission webhook: denies pods with the label ``deny=true`` and allows all others."""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

BODY_BYTES_MAX = 3 * 1024 * 1024  # the maximum that a kube-apiserver sends
WAIT_MS_MAX = 10_000
DENIAL = "pods with the label deny=true are not allowed"


class InvalidReview(ValueError):
    """The body is not a valid AdmissionReview of admission.k8s.io/v1."""


def review(body: bytes, seen_from: str) -> dict[str, Any]:
    """Returns the AdmissionReview to answer with; `seen_from` is the client's address."""
    request = _request_in(body)
    response: dict[str, Any] = {
        "uid": request["uid"],
        "allowed": _labels(request).get("deny") != "true",
        "auditAnnotations": {"seen-from": seen_from},
    }
    if not response["allowed"]:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": DENIAL}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _request_in(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidReview(f"invalid JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview":
        raise InvalidReview("kind must be AdmissionReview")
    if document.get("apiVersion") != "admission.k8s.io/v1":
        raise InvalidReview("apiVersion must be admission.k8s.io/v1")
    request = document.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise InvalidReview("required field missing: request.uid")
    return request


def _labels(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the labels of the object; the object is null in a DELETE."""
    node: Any = request
    for key in ("object", "metadata", "labels"):
        node = node.get(key) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    # Headers and body are sent as one segment: with two, the second would wait for the first one's ACK.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._reply(200, b"ok\n", "text/plain")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            self.close_connection = True
            self._reply(
                413 if length.isdecimal() else 411, b"a Content-Length of at most 3 MiB is required\n"
            )
            return
        body = self.rfile.read(int(length))
        time.sleep(self._wait_ms() / 1000)
        try:
            answer = review(body, self._seen_from())
        except InvalidReview as error:
            self._reply(400, f"{error}\n".encode())
            return
        self._reply(200, json.dumps(answer).encode(), "application/json")

    def _wait_ms(self) -> int:
        """Returns the delay that the caller requested: `?wait-ms=300`."""
        wanted = parse_qs(urlsplit(self.path).query).get("wait-ms", ["0"])[0]
        return min(int(wanted), WAIT_MS_MAX) if wanted.isdecimal() else 0

    def _seen_from(self) -> str:
        return str(self.client_address[0]).removeprefix("::ffff:")

    def _reply(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs only responses other than 2xx."""
        if len(args) < 2 or not str(args[1]).startswith("2"):
            sys.stderr.write(f"{self.client_address[0]} {format % args}\n")


class WebhookServer(ThreadingHTTPServer):
    """HTTPS on one address; the handshake runs in the thread of the connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, tls: ssl.SSLContext) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._tls = tls
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer.server_bind would look the host name up in DNS.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(10)
        with self._tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        sys.stderr.write(f"{client_address[0]} {type(sys.exc_info()[1]).__name__}: {sys.exc_info()[1]}\n")


def main() -> int:
    """Serves until it is stopped by a signal."""
    parser = argparse.ArgumentParser(prog="webhook", description=__doc__)
    parser.add_argument("--listen", action="append", required=True, help="address; may be repeated")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--cert", required=True)
    parser.add_argument("--key", required=True)
    flags = parser.parse_args()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(flags.cert, flags.key)
    threads = [
        threading.Thread(target=WebhookServer(address, flags.port, tls).serve_forever)
        for address in flags.listen
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
