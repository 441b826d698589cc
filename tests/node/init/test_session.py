"""Input files are validated before the instance is called; output files are never overwritten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bootbridge.common.secret_files import read_secret, write_new_secret
from bootbridge.errors import OperatorError, PeerError
from bootbridge.node.init.admin_kubeconfig import with_server_host
from bootbridge.node.init.master_secret import MasterSecret
from bootbridge.node.init.session import InitOptions, InitSession
from bootbridge.trust.key_hierarchy import measurement_secret
from tests.node.local_instance import LocalInstance
from tests.node.local_run import RecordingReport, options


def refused(options: InitOptions) -> str:
    with pytest.raises(OperatorError) as error:
        InitSession(options, RecordingReport())
    return str(error.value)


def test_an_unreadable_file_is_reported_with_its_flag(instance: LocalInstance) -> None:
    good = options(instance)
    none = instance.user / "none"
    assert refused(replace(good, spec=none)).startswith("--spec: cannot read")
    assert refused(replace(good, policy=none)).startswith("--policy: cannot read")
    assert refused(replace(good, init_secret=none)).startswith("--init-secret-file: cannot read")
    assert refused(replace(good, evidence=none)).startswith("--evidence: cannot read")
    assert refused(replace(good, kubeconfig=none / "admin.conf")).startswith(
        "--kubeconfig: directory not writable"
    )
    assert not good.secrets.exists(), "no master secret is made for an init that cannot begin"


def test_an_invalid_field_is_reported(instance: LocalInstance) -> None:
    good = options(instance)
    good.spec.write_text("kubernetesVersion: '1.36'")
    assert "kubernetesVersion" in refused(good)
    good.spec.write_text("kubernetesVersion: v1.36.3")
    good.policy.write_text("evidence: {}")
    assert refused(good).startswith(f"{good.policy}: evidence: at least one kind is required")
    good.policy.write_text("evidence: {token: {tokens: {dev: much-too-secret-to-be-shown")
    assert "much-too-secret" not in refused(good)


def test_empty_evidence_is_rejected(instance: LocalInstance) -> None:
    nothing = instance.user / "evidence.yaml"
    nothing.write_text("{}")
    assert refused(replace(options(instance), evidence=nothing)) == (
        f"{nothing}: at least one kind of evidence is required"
    )


def test_a_secret_readable_by_others_is_rejected(instance: LocalInstance) -> None:
    good = options(instance)
    good.init_secret.chmod(0o644)
    assert "chmod 600" in refused(good)


def test_a_kubeconfig_is_not_overwritten(instance: LocalInstance) -> None:
    instance.kubeconfig.write_text("of another cluster")
    assert "file exists" in refused(options(instance))


def test_an_unfinished_init_keeps_its_id_per_endpoint(
    instance: LocalInstance,
) -> None:
    good = options(instance)
    first = InitSession(good, RecordingReport()).init_id
    record = {"initID": first, "endpoint": [good.host, good.port]}
    good.record.write_text(json.dumps(record))
    assert InitSession(good, RecordingReport()).init_id == first
    assert InitSession(replace(good, port=1), RecordingReport()).init_id != first
    assert InitSession(replace(good, resume="elsewhere"), RecordingReport()).init_id == "elsewhere"


# --- the master secret


def test_the_master_secret_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    made = MasterSecret.load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert MasterSecret.load_or_create(path) == made
    assert MasterSecret.load_or_create(tmp_path / "other.json") != made
    assert made.measurement_secret == measurement_secret(made.key, made.salt)
    assert made.key.hex() not in repr(made)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"key": "AAAA", "salt": "AAAA", "measurementSalt": "AA"}'])
def test_an_invalid_master_secret_is_neither_used_nor_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secrets.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(OperatorError, match="invalid master secret"):
        MasterSecret.load_or_create(path)
    assert path.read_text() == text


def test_a_new_secret_does_not_overwrite_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_new_secret(path, b"first", "--out")
    with pytest.raises(OperatorError, match=r"--out: file exists: "):
        write_new_secret(path, b"second", "--out")
    assert read_secret(path, "--out") == b"first"
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


# --- the kubeconfig


def kubeconfig(server: str = "https://10.0.0.5:6443") -> bytes:
    entry = {"name": "c", "cluster": {"server": server, "certificate-authority-data": "Q0E="}}
    return yaml.safe_dump({"kind": "Config", "clusters": [entry], "users": []}).encode()


@pytest.mark.parametrize(
    ("server", "host", "expected"),
    [
        ("https://10.0.0.5:6443", "lb.example", "https://lb.example:6443"),
        ("https://[fd00::5]:6443", "fd00::9", "https://[fd00::9]:6443"),
        ("https://10.0.0.5", "lb.example", "https://lb.example"),
    ],
)
def test_the_kubeconfig_gets_the_reachable_host_and_keeps_the_port(
    server: str, host: str, expected: str
) -> None:
    document = yaml.safe_load(with_server_host(kubeconfig(server), host))
    assert document["clusters"][0]["cluster"] == {
        "server": expected,
        "certificate-authority-data": "Q0E=",
    }


@pytest.mark.parametrize("data", [b"", b"{", b"clusters: []", b"clusters: [{}, {}]", b"clusters: [{a: 1}]"])
def test_a_kubeconfig_without_exactly_one_cluster_is_rejected(data: bytes) -> None:
    with pytest.raises(PeerError, match="kubeconfig"):
        with_server_host(data, "lb.example")


@pytest.mark.parametrize(
    ("user", "cluster", "strange"),
    [
        ({"exec": {"command": "sh"}}, {}, "exec"),
        ({"tokenFile": "/home/user/.ssh/id_ed25519"}, {}, "tokenFile"),
        ({}, {"proxy-url": "http://10.0.0.9"}, "proxy-url"),
        ({}, {"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify"),
    ],
)
def test_a_kubeconfig_with_commands_files_or_proxies_is_rejected(
    user: dict[str, object], cluster: dict[str, object], strange: str
) -> None:
    document = yaml.safe_load(kubeconfig())
    document["users"] = [{"name": "admin", "user": {"client-key-data": "S0VZ", **user}}]
    document["clusters"][0]["cluster"] |= cluster
    with pytest.raises(PeerError, match=f"unknown field '{strange}'"):
        with_server_host(yaml.safe_dump(document).encode(), "lb.example")
