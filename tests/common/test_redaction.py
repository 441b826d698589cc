"""Removes secrets of every format from collected files, and changes nothing else."""

from __future__ import annotations

import base64
import json

import pytest
import yaml

from bootbridge.common.redaction import WITHHELD, Redactor, is_secret_file
from bootbridge.trust.authority import Authority, KeyKind
from tests.bootstrap.diagnose.log_bundle import holders

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"
KINDS: list[KeyKind] = ["rsa-2048", "ecdsa-p256"]


@pytest.fixture(scope="module", params=KINDS)
def key(request: pytest.FixtureRequest) -> bytes:
    return Authority.create("a", key=request.param).issue_client("b").key_pem


def shapes(key: bytes) -> dict[str, bytes]:
    once = base64.b64encode(key)
    folded = base64.encodebytes(key)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"tls.key": once.decode()},
    }
    return {
        "plain": b"before\n" + key + b"after\n",
        "in a log line": b"level=info msg=" + json.dumps(key.decode()).encode() + b" done",
        "base64": b"tls.key: " + once + b"\n",
        "base64 twice": b"x: " + base64.b64encode(b"key: " + once) + b"\n",
        "base64 with a certificate before it": base64.b64encode(b"-----BEGIN CERTIFICATE-----\nAA\n" + key),
        "data URL": b'{"source":"data:text/plain;charset=utf-8;base64,' + once + b'"}',
        "escaped data URL": b'{"source":"data:,' + key.replace(b" ", b"%20").replace(b"\n", b"%0A") + b'"}',
        "Secret as YAML": yaml.safe_dump(secret).encode(),
        "Secret as JSON": json.dumps(secret).encode(),
        "Secret in a list": json.dumps({"kind": "List", "items": [{"kind": "Pod"}, secret]}).encode(),
        "stringData": yaml.safe_dump({"kind": "Secret", "stringData": {"k": key.decode()}}).encode(),
        "broken YAML of a Secret": b"kind: Secret\ndata:\n\ttls.key: [" + folded + b"\n",
        "Secret in a log line": b"I1 applied " + json.dumps(json.dumps(secret)).encode() + b"\nI2 next\n",
        "cut off at its end": b"before\n" + key[: len(key) * 2 // 3],
        "cut off at its beginning": key[len(key) // 3 :] + b"after\n",
        "kubeconfig": b"users:\n- name: a\n  user:\n    client-key-data: " + once + b"\n",
    }


@pytest.mark.parametrize("shape", list(shapes(b"")))
def test_a_private_key_is_removed(key: bytes, shape: str) -> None:
    """Even if it is not a known key of this node."""
    cleaned = Redactor().clean(shapes(key)[shape])
    assert holders({shape: cleaned}, key) == []


def test_a_part_of_a_known_key_is_removed(key: bytes) -> None:
    """A single line, and the body without the PEM header in base64."""
    line = key.splitlines()[1]
    inner = base64.b64encode(b"\n".join(key.splitlines()[1:-1]))
    cleaned = Redactor([key]).clean(b"seen: " + line + b"\nencoded: " + inner + b"\n")
    assert holders({"": cleaned}, key) == []
    assert cleaned.startswith(b"seen: [redacted]\n")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"Authorization: Bearer {TOKEN}", TOKEN),
        (f"curl -H 'authorization: bearer {TOKEN}'", TOKEN),
        (f'"token": "{TOKEN}"', TOKEN),
        ("    token: abcdef.0123456789abcdef", "0123456789abcdef"),
        ("kubeadm join --token=abcdef.0123456789abcdef 10.0.0.1:6443", "0123456789abcdef"),
        ("Bearer sha256~Abcdefghijklmnopqrstuvwxyz0123456789", "Abcdefghij"),
        ('{"auths":{"quay.io":{"auth":"dXNlcjpwYXNzd29yZA==","email":"a@b"}}}', "dXNlcjpwYXNz"),
        (r'pullSecret: "{\"auths\":{\"quay.io\":{\"auth\":\"dXNlcjpwYXNzd29yZA==\"}}}"', "dXNlcjpwYXNz"),
        ("password: hunter2hunter2", "hunter2"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "wJalrXUtn"),
    ],
)
def test_a_token_is_removed(text: str, secret: str) -> None:
    """From headers, kubeconfigs, pull secrets and command lines."""
    cleaned = Redactor().clean(text.encode()).decode()
    assert secret not in cleaned
    assert "[redacted]" in cleaned


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01T00:00:00Z INFO server: agent connected agent=node0 extension=credit agents=1\n",
        Authority.create("a").cert_pem.decode(),
        "konnectivity_network_proxy_server_ready_backend_connections 2\n",
        "token_reviews_total 4\nimage: quay.io/release/ocp@sha256:0123456789abcdef0123456789abcdef\n",
        '{"kind": "ServiceAccount", "secrets": [{"name": "a"}]}\n',
        "/etc/kubernetes/manifests/konnectivity-server-pod.yaml: the author says so\n",
    ],
)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    """Certificates are public, and needed for a diagnosis."""
    assert Redactor().clean(text.encode()).decode() == text


def test_a_secret_in_json_keeps_its_field_names() -> None:
    """With size and hash of each value, so that two copies can be compared."""
    value = base64.b64encode(b"a certificate").decode()
    secrets = [{"kind": "Secret", "metadata": {"name": "s"}, "data": {"ca.crt": value}}]
    cleaned = json.loads(Redactor().clean(json.dumps(secrets).encode()))
    assert cleaned[0]["data"]["ca.crt"].startswith("[redacted] 13 bytes, sha256 ")
    again = json.loads(Redactor().clean(json.dumps(cleaned).encode()))
    assert again == cleaned


def test_a_copy_of_a_secret_in_an_annotation_is_removed() -> None:
    """`kubectl apply` writes one."""
    last = {"kubectl.kubernetes.io/last-applied-configuration": '{"data":{"k":"c2VjcmV0c2VjcmV0"}}', "a": "b"}
    secret = {"kind": "Secret", "metadata": {"annotations": last}, "data": {"k": "c2VjcmV0c2VjcmV0"}}
    cleaned = Redactor().clean(json.dumps(secret).encode())
    assert b"c2VjcmV0" not in cleaned
    assert json.loads(cleaned)["metadata"]["annotations"] == {"a": "b"}


def test_a_secret_inside_a_config_map_is_removed() -> None:
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: db}\nstringData: {anything: Tr0ub4dor}\n"
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"note": "shown", "db.yaml": secret}}
    for text in (yaml.safe_dump(config_map), json.dumps(config_map)):
        cleaned = Redactor().clean(text.encode()).decode()
        assert "Tr0ub4dor" not in cleaned
        assert yaml.safe_load(cleaned)["data"]["note"] == "shown"
        assert yaml.safe_load(yaml.safe_load(cleaned)["data"]["db.yaml"])["metadata"] == {"name": "db"}


def test_a_secret_that_cannot_be_parsed_is_withheld() -> None:
    assert Redactor().clean(b"kind: Secret\ndata: {a: [\n") == WITHHELD


def test_key_files_are_recognised_by_name() -> None:
    """They are not opened."""
    assert all(map(is_secret_file, ("/a/agent.key", "b/ID_RSA", "c.p12", "id_ed25519")))
    assert not any(map(is_secret_file, ("/a/agent.crt", "monkey.txt", "keys.json")))
