"""The demo's webhook: answers AdmissionReview v1, and rejects everything else without failing."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from typing import Any

import pytest

from bootbridge.demo.calls import WEBHOOK_NAME, admission_review
from bootbridge.demo.certificates import DemoCertificates
from bootbridge.demo.webhook import DENIAL, InvalidReview, review


def review_of(labels: dict[str, str]) -> dict[str, Any]:
    return review(json.dumps(admission_review(labels)).encode(), "10.128.0.1")


def test_pod_without_the_label_is_allowed_without_a_status() -> None:
    response = review_of({"app": "web"})["response"]
    assert response["allowed"] is True
    assert "status" not in response


def test_pod_with_deny_true_is_denied_with_a_reason() -> None:
    """A kube-apiserver shows `status.message` to the user and answers with `status.code`."""
    response = review_of({"deny": "true"})["response"]
    assert response["allowed"] is False
    assert response["status"] == {"code": 403, "reason": "Forbidden", "message": DENIAL}


def test_only_the_value_true_is_denied() -> None:
    assert review_of({"deny": "false"})["response"]["allowed"] is True


def test_response_has_the_uid_of_the_request() -> None:
    """A kube-apiserver rejects a response with another uid."""
    question = admission_review({})
    answer = review(json.dumps(question).encode(), "::1")
    assert answer["response"]["uid"] == question["request"]["uid"]
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")


def test_response_contains_the_client_address() -> None:
    """The demo derives from it which agent dialled."""
    assert review_of({})["response"]["auditAnnotations"] == {"seen-from": "10.128.0.1"}


@pytest.mark.parametrize("thing", [None, {}, {"metadata": None}, {"metadata": {"labels": None}}, 7])
def test_object_without_labels_is_allowed(thing: object) -> None:
    """A DELETE has a null object."""
    question = admission_review({})
    question["request"]["object"] = thing
    assert review(json.dumps(question).encode(), "")["response"]["allowed"] is True


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"kind":"Pod"}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"1"}}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":5}}',
    ],
)
def test_malformed_review_is_rejected(body: bytes) -> None:
    with pytest.raises(InvalidReview):
        review(body, "")


@pytest.fixture
def https(webhook: int, certificates: DemoCertificates) -> http.client.HTTPConnection:
    raw = socket.create_connection(("127.0.0.1", webhook), timeout=5)
    connection = http.client.HTTPConnection(WEBHOOK_NAME)
    connection.sock = certificates.webhook_client_context().wrap_socket(raw, server_hostname=WEBHOOK_NAME)
    return connection


def test_malformed_body_gets_400_and_the_connection_stays_open(https: http.client.HTTPConnection) -> None:
    https.request("POST", "/validate", b"nonsense")
    bad = https.getresponse()
    assert (bad.status, bad.read()[:12]) == (400, b"invalid JSON")
    kept = https.sock
    https.request("POST", "/validate", json.dumps(admission_review({})))
    good = https.getresponse()
    assert json.loads(good.read())["response"]["allowed"] is True
    assert https.sock is kept
    https.close()


@pytest.mark.parametrize(("length", "status"), [(str(1 << 30), 413), ("", 411)])
def test_body_that_is_too_long_or_has_no_length_is_rejected_unread(
    length: str, status: int, https: http.client.HTTPConnection
) -> None:
    https.putrequest("POST", "/validate")
    if length:
        https.putheader("Content-Length", length)
    https.endheaders()
    assert https.getresponse().status == status
    https.close()


def is_closed_by_peer(sock: socket.socket) -> bool:
    """Waits until the peer closes or resets the connection."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_plain_http_fails_only_its_own_connection(
    webhook: int, certificates: DemoCertificates, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", webhook), timeout=5) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert is_closed_by_peer(plain)
    raw = socket.create_connection(("127.0.0.1", webhook), timeout=5)
    with certificates.webhook_client_context().wrap_socket(raw, server_hostname=WEBHOOK_NAME) as secured:
        assert secured.version() in ("TLSv1.2", "TLSv1.3")
    assert "SSLError" in capsys.readouterr().err


def test_certificate_is_valid_only_for_the_service_name(webhook: int, certificates: DemoCertificates) -> None:
    """A kube-apiserver verifies the name, independent of the address."""
    with (
        socket.create_connection(("127.0.0.1", webhook), timeout=5) as raw,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        certificates.webhook_client_context().wrap_socket(raw, server_hostname="127.0.0.1")
