"""Calling the webhook the way a kube-apiserver does: CONNECT over the unix socket, TLS, POST."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import uuid
from collections.abc import Callable
from typing import Any

from bootbridge.demo.network import Place

WEBHOOK_NAME = "label-guard.demo.svc"
ANSWER_BYTES_MAX = 64 * 1024


class HopFailed(Exception):
    """A call did not get through; `hop` says how far it got, `log_of` which program to ask."""

    def __init__(self, hop: str, reason: object, log_of: str) -> None:
        super().__init__(f"{hop}: {reason}")
        self.hop = hop
        self.log_of = log_of


Dial = Callable[[], socket.socket]


def through_tunnel(unix_socket: str, host: str, port: int, timeout: float = 10.0) -> socket.socket:
    """A connection to `host:port`, made by one of the agents."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout)
    try:
        _dial_unix(sock, unix_socket)
        _ask_for(sock, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except BaseException:
        sock.close()
        raise
    return sock


def directly(place: Place, host: str, port: int, timeout: float = 10.0) -> socket.socket:
    """A connection to `host:port` without any tunnel."""
    try:
        return place.connect(host, port, timeout)
    except OSError as error:
        raise HopFailed(f"TCP from the {place.label} to the pod", reason_of(error), "webhook") from error


class Conversation:
    """One TLS connection to the webhook, for one review or many."""

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            # A kube-apiserver dials an address and expects the service's name in the certificate.
            secured = tls.wrap_socket(sock, server_hostname=WEBHOOK_NAME)
        except OSError as error:
            sock.close()
            raise HopFailed("TLS with the webhook", reason_of(error), "webhook") from error
        self._http = http.client.HTTPConnection(WEBHOOK_NAME)
        self._http.sock = secured

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def send(self, labels: dict[str, str], wait_ms: int = 0) -> None:
        """Ask whether a pod with these labels may be made."""
        body = json.dumps(admission_review(labels))
        try:
            self._http.request(
                "POST", f"/validate?wait-ms={wait_ms}", body, {"Content-Type": "application/json"}
            )
        except OSError as error:
            raise HopFailed("request to the webhook", reason_of(error), "webhook") from error

    def answer(self) -> dict[str, Any]:
        """The `response` of the AdmissionReview that comes back."""
        try:
            reply = self._http.getresponse()
            body = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise HopFailed("answer from the webhook", reason_of(error), "webhook") from error
        if reply.status != 200:
            raise HopFailed("answer from the webhook", f"{reply.status} {reply.reason}", "webhook")
        response: dict[str, Any] = json.loads(body)["response"]
        return response

    def review(self, labels: dict[str, str]) -> dict[str, Any]:
        self.send(labels)
        return self.answer()


def admission_review(labels: dict[str, str]) -> dict[str, Any]:
    """What a kube-apiserver sends when somebody creates a pod."""
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
    """The part of an error that a person reads."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not trusted: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _dial_unix(sock: socket.socket, path: str) -> None:
    try:
        sock.connect(path)
    except OSError as error:
        raise HopFailed("proxy-server's unix socket", reason_of(error), "proxy-server") from error


def _ask_for(sock: socket.socket, target: str) -> None:
    hop = f"tunnel to {target}"
    try:
        sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head, rest = _read_head(sock)
    except OSError as error:
        raise HopFailed(hop, reason_of(error), "proxy-server") from error
    version, _, status = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    if not version.startswith("HTTP/1."):
        raise HopFailed(hop, "the proxy-server closed without an answer", "proxy-server")
    if not status.startswith("200"):
        raise HopFailed(hop, f"the proxy-server said {_with_body(sock, status, rest)}", "proxy-server")
    if rest:
        raise HopFailed(hop, f"{len(rest)} bytes came before we had sent any", "proxy-server")


def _read_head(sock: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received and len(received) < ANSWER_BYTES_MAX:
        chunk = sock.recv(4096)
        if not chunk:
            break
        received += chunk
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


def _with_body(sock: socket.socket, status: str, body: bytes) -> str:
    """A refusal explains itself in its body; how much of it has come is up to the network."""
    sock.settimeout(0.5)
    try:
        while len(body) < ANSWER_BYTES_MAX and (chunk := sock.recv(4096)):
            body += chunk
    except OSError:
        pass
    text = " ".join(body.decode("utf-8", "replace").split())
    return f"{status}: {text}" if text else status
