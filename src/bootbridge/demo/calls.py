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
from bootbridge.frontend_client.call import ConnectCall, DialError
from bootbridge.wire.addresses import join_host_port

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
        _send_connect(sock, join_host_port(host, port))
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
    hop, call = f"tunnel to {target}", ConnectCall(target)
    try:
        sock.sendall(call.take_output())
        while not call.connected:
            data = sock.recv(RESPONSE_BYTES_MAX)
            call.receive(data) if data else call.receive_end()
    except DialError as error:
        reason = f"proxy-server answered {error.status}: {error}" if error.status else error
        raise CallFailed(hop, reason, "proxy-server") from error
    except OSError as error:
        raise CallFailed(hop, reason_of(error), "proxy-server") from error
    if rest := call.take_received():
        raise CallFailed(hop, f"{len(rest)} unexpected bytes after the 200 response", "proxy-server")
