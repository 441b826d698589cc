"""The webhook answers AdmissionReview v1 by its one rule and survives everything else."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from typing import Any

import pytest

from bootbridge.demo.calls import WEBHOOK_NAME, admission_review
from bootbridge.demo.certificates import Papers
from bootbridge.demo.webhook import REFUSAL, NotAReview, review


def answer_to(labels: dict[str, str]) -> dict[str, Any]:
    return review(json.dumps(admission_review(labels)).encode(), "10.128.0.1")


def test_a_pod_without_the_label_is_allowed() -> None:
    """Allowed, without a status."""
    response = answer_to({"app": "web"})["response"]
    assert response["allowed"] is True
    assert "status" not in response


def test_a_pod_labelled_deny_true_is_refused_with_a_reason() -> None:
    """A kube-apiserver shows `status.message` to the user and answers with `status.code`."""
    response = answer_to({"deny": "true"})["response"]
    assert response["allowed"] is False
    assert response["status"] == {"code": 403, "reason": "Forbidden", "message": REFUSAL}


def test_only_the_value_true_denies() -> None:
    """deny=false is no wish to be denied."""
    assert answer_to({"deny": "false"})["response"]["allowed"] is True


def test_the_answer_carries_the_uid_of_the_question() -> None:
    """A kube-apiserver rejects an answer with another uid."""
    question = admission_review({})
    answer = review(json.dumps(question).encode(), "::1")
    assert answer["response"]["uid"] == question["request"]["uid"]
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")


def test_the_answer_tells_from_where_it_was_asked() -> None:
    """So that the demo can say through which node a call came."""
    assert answer_to({})["response"]["auditAnnotations"] == {"seen-from": "10.128.0.1"}


@pytest.mark.parametrize("thing", [None, {}, {"metadata": None}, {"metadata": {"labels": None}}, 7])
def test_an_object_without_labels_is_allowed(thing: object) -> None:
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
def test_anything_else_is_not_a_review(body: bytes) -> None:
    """Malformed input gets a reason."""
    with pytest.raises(NotAReview):
        review(body, "")


@pytest.fixture
def https(webhook: int, papers: Papers) -> http.client.HTTPConnection:
    raw = socket.create_connection(("127.0.0.1", webhook), timeout=5)
    connection = http.client.HTTPConnection(WEBHOOK_NAME)
    connection.sock = papers.tls_to_webhook().wrap_socket(raw, server_hostname=WEBHOOK_NAME)
    return connection


def test_a_bad_body_gets_400_and_the_connection_lives_on(https: http.client.HTTPConnection) -> None:
    """One bad review does not spoil the next."""
    https.request("POST", "/validate", b"nonsense")
    bad = https.getresponse()
    assert (bad.status, bad.read()[:8]) == (400, b"not JSON")
    kept = https.sock
    https.request("POST", "/validate", json.dumps(admission_review({})))
    good = https.getresponse()
    assert json.loads(good.read())["response"]["allowed"] is True
    assert https.sock is kept
    https.close()


def test_a_body_beyond_the_limit_is_refused_unread(https: http.client.HTTPConnection) -> None:
    """Nobody makes us read a gigabyte."""
    https.putrequest("POST", "/validate")
    https.putheader("Content-Length", str(1 << 30))
    https.endheaders()
    assert https.getresponse().status == 413
    https.close()


def test_a_body_without_a_length_is_refused(https: http.client.HTTPConnection) -> None:
    """We do not guess where a body ends."""
    https.putrequest("POST", "/validate")
    https.endheaders()
    assert https.getresponse().status == 411
    https.close()


def hung_up(sock: socket.socket) -> bool:
    """Wait until the other end closes, in good manners or not."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_plain_http_hurts_only_its_own_connection(
    webhook: int, papers: Papers, capsys: pytest.CaptureFixture[str]
) -> None:
    """A peer that speaks no TLS is dropped with one line; the next one is served."""
    with socket.create_connection(("127.0.0.1", webhook), timeout=5) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert hung_up(plain)
    raw = socket.create_connection(("127.0.0.1", webhook), timeout=5)
    with papers.tls_to_webhook().wrap_socket(raw, server_hostname=WEBHOOK_NAME) as secured:
        assert secured.version() in ("TLSv1.2", "TLSv1.3")
    assert "SSLError" in capsys.readouterr().err


def test_the_certificate_is_for_the_service_name_only(webhook: int, papers: Papers) -> None:
    """As a kube-apiserver expects: the name, whatever address was dialled."""
    with (
        socket.create_connection(("127.0.0.1", webhook), timeout=5) as raw,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        papers.tls_to_webhook().wrap_socket(raw, server_hostname="127.0.0.1")
