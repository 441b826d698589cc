"""Calls the webhook as a kube-apiserver does: CONNECT over the unix socket, TLS, POST."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import uuid
from collections.abc import Callable
from typing import Any

from bootbridge.demo.network import NetworkContext

WEBHOOK_NAME = "label-guard.demo.svc"
RESPONSE_BYTES_MAX = 64 * 1024


class CallFailed(Exception):
    """A call failed; the text starts with the hop, `log_of` is the program whose log may explain it."""

    def __init__(self, hop: str, reason: object, log_of: str) -> None:
        super().__init__(f"{hop}: {reason}")
        self.log_of = log_of


Dial = Callable[[], socket.socket]


def through_tunnel(unix_socket: str, host: str, port: int, timeout: float = 10.0) -> socket.socket:
    """Returns a connection to `host:port`, dialled by one of the agents."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout)
    try:
        _dial_unix(sock, unix_socket)
        _send_connect(sock, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except BaseException:
        sock.close()
        raise
    return sock


def directly(context: NetworkContext, host: str, port: int, timeout: float = 10.0) -> socket.socket:
    """Returns a connection to `host:port` without the tunnel."""
    try:
        return context.connect(host, port, timeout)
    except OSError as error:
        raise CallFailed(f"TCP from {context.label} to pod", reason_of(error), "webhook") from error


class WebhookConnection:
    """One TLS connection to the webhook, for one or more reviews."""

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            # A kube-apiserver dials an address and verifies the Service's DNS name.
            secured = tls.wrap_socket(sock, server_hostname=WEBHOOK_NAME)
        except OSError as error:
            sock.close()
            raise CallFailed("TLS handshake with webhook", reason_of(error), "webhook") from error
        self._http = http.client.HTTPConnection(WEBHOOK_NAME)
        self._http.sock = secured

    def __enter__(self) -> WebhookConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def send(self, labels: dict[str, str], wait_ms: int = 0) -> None:
        """Sends the AdmissionReview of a pod with these labels."""
        body, headers = json.dumps(admission_review(labels)), {"Content-Type": "application/json"}
        try:
            self._http.request("POST", f"/validate?wait-ms={wait_ms}", body, headers)
        except OSError as error:
            raise CallFailed("request to webhook", reason_of(error), "webhook") from error

    def receive(self) -> dict[str, Any]:
        """Returns the `response` of the AdmissionReview that the webhook answers with."""
        hop = "response from webhook"
        try:
            reply = self._http.getresponse()
            body = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise CallFailed(hop, reason_of(error), "webhook") from error
        if reply.status != 200:
            raise CallFailed(hop, f"{reply.status} {reply.reason}", "webhook")
        response: dict[str, Any] = json.loads(body)["response"]
        return response

    def review(self, labels: dict[str, str]) -> dict[str, Any]:
        self.send(labels)
        return self.receive()


def admission_review(labels: dict[str, str]) -> dict[str, Any]:
    """Returns what a kube-apiserver sends when a pod is created."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "default",
            "name": "example",
            "userInfo": {"username": "demo"},
            "object": {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "example", "namespace": "default", "labels": labels},
            },
            "dryRun": False,
        },
    }


def reason_of(error: BaseException) -> str:
    """Returns an error's text without its number."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verification failed: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _dial_unix(sock: socket.socket, path: str) -> None:
    try:
        sock.connect(path)
    except OSError as error:
        raise CallFailed("unix socket of proxy-server", reason_of(error), "proxy-server") from error


def _send_connect(sock: socket.socket, target: str) -> None:
    hop = f"tunnel to {target}"
    try:
        sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head, rest = _read_head(sock)
    except OSError as error:
        raise CallFailed(hop, reason_of(error), "proxy-server") from error
    version, _, status = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    if not version.startswith("HTTP/1."):
        raise CallFailed(hop, "proxy-server closed the connection without a response", "proxy-server")
    if not status.startswith("200"):
        raise CallFailed(hop, f"proxy-server answered {_with_body(sock, status, rest)}", "proxy-server")
    if rest:
        raise CallFailed(hop, f"{len(rest)} unexpected bytes after the 200 response", "proxy-server")


def _read_head(sock: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received and len(received) < RESPONSE_BYTES_MAX:
        chunk = sock.recv(4096)
        if not chunk:
            break
        received += chunk
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


def _with_body(sock: socket.socket, status: str, body: bytes) -> str:
    """Returns the status and the body, which holds the reason; the body may arrive in later packets."""
    sock.settimeout(0.5)
    try:
        while len(body) < RESPONSE_BYTES_MAX and (chunk := sock.recv(4096)):
            body += chunk
    except OSError:
        pass
    text = " ".join(body.decode("utf-8", "replace").split())
    return f"{status}: {text}" if text else status
