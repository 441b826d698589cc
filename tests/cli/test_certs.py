"""`bootbridge certs`: what it prints, its exit codes and its errors."""

from __future__ import annotations

import json
import os
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bootbridge.cli import main
from bootbridge.trust.certificate_directory import CertificateDirectory, CertificateRequest


@pytest.fixture(autouse=True)
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> int:
    return main.main(["certs", *words])


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def by_name(found: dict[str, Any], field: str) -> dict[str, Any]:
    return {each["name"]: each[field] for each in found["certificates"]}


def test_without_a_command_it_creates_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    found = document(capsys)
    assert by_name(found, "action") == dict.fromkeys(("ca", "server", "agent"), "created")
    assert found["changed"] is True
    assert by_name(found, "names")["server"] == ["localhost", "127.0.0.1", "::1"]
    assert run("create", "--json") == 0
    assert document(capsys)["changed"] is False


def test_the_next_commands_name_files_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """The printed proxy-server and proxy-agent commands can be pasted."""
    assert run("--dir", "my certs", "--server-name", "proxy.example", "--agent", "worker-1") == 0
    text = capsys.readouterr().out.partition("Next:")[2]
    assert "--proxy-server-host=proxy.example" in text
    for name in ("server.crt", "server.key", "ca.crt", "agent-worker-1.crt", "agent-worker-1.key"):
        assert f"'my certs/{name}'" in text
        assert Path("my certs", name).exists()
    assert "bootbridge certs" not in text


def test_an_agent_of_its_own_replaces_the_shared_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither this run nor a later one without --agent creates a certificate for all agents."""
    assert run("--agent", "worker-1=192.0.2.11,10.1.0.0/24,fd01::/64", "--json") == 0
    names = by_name(document(capsys), "names")
    assert names["agent-worker-1"] == ["worker-1", "192.0.2.11", "cidr:10.1.0.0/24", "cidr:fd01::/64"]
    assert run("--json") == 0
    assert set(by_name(document(capsys), "name")) == {"ca", "server", "agent-worker-1"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--server-name", "https://proxy.example"], "--server-name: invalid host 'https://proxy.example'"),
        (["--server-name", "proxy.example:8091"], "--server-name: invalid host 'proxy.example:8091'"),
        (["--server-name", "192.0.2.300"], "--server-name: invalid host '192.0.2.300'"),
        (["--server-name", "two words"], "--server-name: invalid host 'two words'"),
        (["--server-name", ""], "--server-name: invalid host ''"),
        (["--server-name", f"{'a' * 64}.example"], "--server-name: invalid host"),
        (["--agent", "../worker"], "--agent: invalid host '../worker'"),
        (["--agent", "fd00::1"], "--agent: invalid name 'fd00::1'"),
        (["--agent", "worker=10.1.0.1/24"], "--agent: invalid CIDR '10.1.0.1/24': 10.1.0.1/24 has host bits"),
        (["--validity", "soon"], "--validity: invalid duration 'soon' (for example 720h or 90d)"),
        (["--validity", "1s"], "--validity: out of range: 1s (1m to 36500d)"),
        (["--ca-validity", "36501d"], "--ca-validity: out of range"),
        (["show"], "--dir: cannot read certs: No such file or directory (create certificates with"),
        (["renew"], "--dir: cannot read certs: No such file or directory (create certificates with"),
    ],
)
def test_bad_input_is_one_error_and_writes_nothing(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 1
    assert message in capsys.readouterr().err
    assert os.listdir() == []


def test_an_expired_certificate_is_a_finding_with_the_command_that_renews_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests = [CertificateRequest("server", "proxy-server", ("localhost",))]
    CertificateDirectory(Path("certs")).create(requests, validity=timedelta(minutes=-1))
    assert run("show") == 2
    text = capsys.readouterr().out
    assert "certs: server cannot be used." in text
    assert "bootbridge certs renew" in text
    assert run("renew", "--validity", "90d", "--json") == 0
    assert by_name(document(capsys), "state") == {"ca": "valid", "server": "valid"}
    assert run("show") == 0


def test_renewal_says_whether_anything_was_due(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    capsys.readouterr()
    assert run("renew") == 0
    assert "nothing changed, none is due" in capsys.readouterr().out
    assert run("renew", "--force") == 0
    assert "2 certificates renewed, with the same keys" in capsys.readouterr().out
    assert run("renew", "--ca") == 0
    assert "1 certificate renewed" in capsys.readouterr().out


def test_the_files_work_for_mutual_tls(capsys: pytest.CaptureFixture[str]) -> None:
    run("--frontend")
    server, client = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cafile="certs/ca.crt"),
    )
    server.load_cert_chain("certs/server.crt", "certs/server.key")
    server.load_verify_locations("certs/ca.crt")
    server.verify_mode = ssl.CERT_REQUIRED
    client.load_cert_chain("certs/agent.crt", "certs/agent.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="::1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in ends * 2:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert ends[1].getpeercert()


def test_no_command_writes_to_an_existing_key(capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever flags it has: a key may be the only copy, and programs that use it would stop working."""
    assert run("create", "--agent", "worker-1", "--frontend") == 0
    keys = sorted(Path("certs").glob("*.key"))
    assert len(keys) == 5

    def state() -> list[tuple[int, int, bytes]]:
        return [(each.stat().st_ino, each.stat().st_mtime_ns, each.read_bytes()) for each in keys]

    before = state()
    for words in (
        ["create", "--key", "rsa-2048"],
        ["create", "--server-name", "other.example", "--agent", "worker-1=192.0.2.9", "--frontend"],
        ["renew", "--force", "--validity", "30d"],
        ["renew", "--ca"],
    ):
        assert run(*words) == 0
        assert state() == before, words
    for each in keys:
        each.with_suffix(".crt").unlink()
    assert run("create", "--agent", "worker-1", "--frontend", "--key", "rsa-2048") == 0
    assert state() == before
