"""Certificates in a directory: created once, renewed with the same keys, never mixed up."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from bootbridge.errors import OperatorError
from bootbridge.trust.authority import Authority, KeyKind
from bootbridge.trust.certificate_directory import (
    CertificateAction,
    CertificateDirectory,
    CertificateRequest,
    CertificateResult,
)

SERVER = CertificateRequest("server", "proxy-server", ("localhost", "127.0.0.1", "::1"))
AGENT = CertificateRequest("agent", "proxy-agent")
FRONTEND = CertificateRequest("frontend", "frontend")
ALL = (SERVER, AGENT, FRONTEND)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def actions(results: list[CertificateResult]) -> dict[str, str]:
    return {each.stored.name: str(each.action) for each in results}


def in_days(days: float) -> Callable[[], datetime]:
    return lambda: datetime.now(UTC) + timedelta(days=days)


def openssl_accepts(directory: Path, name: str, purpose: str, ca: str = "ca") -> bool:
    command = ["openssl", "verify", "-x509_strict", "-purpose", purpose]
    command += ["-CAfile", str(directory / f"{ca}.crt"), str(directory / f"{name}.crt")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("kind", ["ecdsa-p256", "rsa-2048"])
def test_openssl_accepts_each_certificate_for_its_purpose(tmp_path: Path, kind: KeyKind) -> None:
    CertificateDirectory(tmp_path).create(ALL, key_kind=kind)
    assert openssl_accepts(tmp_path, "server", "sslserver")
    assert openssl_accepts(tmp_path, "agent", "sslclient")
    assert openssl_accepts(tmp_path, "frontend", "sslclient", "frontend-ca")


def test_an_agent_is_not_accepted_as_a_caller_nor_a_caller_as_an_agent(tmp_path: Path) -> None:
    """Both are client certificates, so their CAs differ."""
    CertificateDirectory(tmp_path).create(ALL)
    assert not openssl_accepts(tmp_path, "agent", "sslclient", "frontend-ca")
    assert not openssl_accepts(tmp_path, "frontend", "sslclient", "ca")


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    CertificateDirectory(tmp_path / "new").create(ALL)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()}
    names = ("ca", "server", "agent", "frontend-ca", "frontend")
    assert modes == {f"{name}.key": 0o600 for name in names} | {f"{name}.crt": 0o644 for name in names}


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    directory = CertificateDirectory(tmp_path)
    assert set(actions(directory.create(ALL)).values()) == {"created"}
    before = content(tmp_path)
    assert set(actions(directory.create(ALL)).values()) == {"unchanged"}
    assert content(tmp_path) == before


def test_a_name_that_the_certificate_lacks_is_added_and_the_key_kept(tmp_path: Path) -> None:
    directory = CertificateDirectory(tmp_path)
    directory.create([SERVER, AGENT])
    before = content(tmp_path)
    more = CertificateRequest("server", "proxy-server", ("127.0.0.1", "proxy.example", "fd00::5"))
    results = directory.create([more, AGENT])
    assert actions(results) == {"ca": "unchanged", "server": "names-added", "agent": "unchanged"}
    changed = {name for name, data in content(tmp_path).items() if data != before[name]}
    assert changed == {"server.crt"}
    assert results[1].stored.names == ("localhost", "127.0.0.1", "::1", "proxy.example", "fd00::5")
    assert openssl_accepts(tmp_path, "server", "sslserver")


@pytest.mark.parametrize("name", ["ca", "server", "agent"])
def test_a_key_without_a_certificate_is_used_not_overwritten(tmp_path: Path, name: str) -> None:
    """A run that was killed leaves keys; only they are written before the certificates."""
    directory = CertificateDirectory(tmp_path)
    directory.create([SERVER, AGENT])
    before = content(tmp_path)
    (tmp_path / f"{name}.crt").unlink()
    assert actions(directory.create([SERVER, AGENT]))[name] == CertificateAction.CREATED
    after = content(tmp_path)
    assert {each: after[each] for each in after if each.endswith(".key")} == {
        each: before[each] for each in before if each.endswith(".key")
    }
    key = load_pem_private_key(after[f"{name}.key"], None)
    assert x509.load_pem_x509_certificate(after[f"{name}.crt"]).public_key() == key.public_key()
    assert openssl_accepts(tmp_path, "server", "sslserver")
    assert openssl_accepts(tmp_path, "agent", "sslclient")


@pytest.mark.parametrize("fails_at", range(1, 11))
def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """At each of the ten files: no file, no temporary file, no directory."""
    _interrupt(monkeypatch, fails_at)
    with pytest.raises(KeyboardInterrupt):
        CertificateDirectory(tmp_path / "certs").create(ALL)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_renewal_leaves_the_old_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = CertificateDirectory(tmp_path)
    directory.create(ALL)
    before = content(tmp_path)
    _interrupt(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        directory.renew(force=True)
    assert content(tmp_path) == before


def _interrupt(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Interrupts the write of one file, right before its rename or link."""
    calls = 0

    def interrupting(real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                raise KeyboardInterrupt
            real(*arguments)

        return call

    monkeypatch.setattr(os, "link", interrupting(os.link))
    monkeypatch.setattr(os, "replace", interrupting(os.replace))


def test_a_key_that_another_process_creates_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The undo removes only what this run has written."""
    link = os.link

    def create_first(source: str, target: Path) -> None:
        if target.name == "agent.key":
            target.write_bytes(b"of another process")
        link(source, target)

    monkeypatch.setattr(os, "link", create_first)
    with pytest.raises(OperatorError, match="file exists"):
        CertificateDirectory(tmp_path).create([SERVER, AGENT])
    assert content(tmp_path) == {"agent.key": b"of another process"}


# --- renewal


def test_renewal_keeps_keys_names_and_validity(tmp_path: Path) -> None:
    CertificateDirectory(tmp_path).create(ALL, validity=timedelta(days=40))
    before, later = content(tmp_path), CertificateDirectory(tmp_path, clock=in_days(35))
    old = {each.name: each for each in later.stored()}
    results = later.renew()
    assert actions(results) == {
        "ca": "unchanged",
        "frontend-ca": "unchanged",
        **dict.fromkeys(("server", "agent", "frontend"), "renewed"),
    }
    for each in (result.stored for result in results):
        now, then = each.certificate, old[each.name].certificate
        assert now is not None
        assert then is not None
        assert now.public_key() == then.public_key()
        assert (now.subject, each.names) == (then.subject, old[each.name].names)
        lasting, lasted = (c.not_valid_after_utc - c.not_valid_before_utc for c in (now, then))
        assert lasting == lasted
    changed = {name for name, data in content(tmp_path).items() if data != before[name]}
    assert changed == {"server.crt", "agent.crt", "frontend.crt"}
    assert openssl_accepts(tmp_path, "server", "sslserver")


def test_only_what_is_due_is_renewed(tmp_path: Path) -> None:
    """A quarter of the validity before the end, and not a day earlier."""
    CertificateDirectory(tmp_path).create([SERVER, AGENT], validity=timedelta(days=40))
    early = CertificateDirectory(tmp_path, clock=in_days(29)).renew()
    assert set(actions(early).values()) == {"unchanged"}
    due = CertificateDirectory(tmp_path, clock=in_days(30.5)).renew()
    assert actions(due)["server"] == "renewed"


def test_renewal_needs_no_key_but_that_of_the_ca(tmp_path: Path) -> None:
    """The others may be on their nodes only."""
    directory = CertificateDirectory(tmp_path)
    directory.create([SERVER, AGENT])
    (tmp_path / "server.key").unlink()
    (tmp_path / "agent.key").unlink()
    assert actions(directory.renew(force=True))["agent"] == "renewed"
    assert not (tmp_path / "agent.key").exists()


def test_a_renewed_ca_and_the_old_one_accept_all_certificates(tmp_path: Path) -> None:
    """So ca.crt can be copied to the nodes in any order."""
    directory = CertificateDirectory(tmp_path)
    directory.create([SERVER, AGENT])
    (tmp_path / "old-ca.crt").write_bytes((tmp_path / "ca.crt").read_bytes())
    assert actions(directory.renew(ca=True)) == {"ca": "renewed", "server": "unchanged", "agent": "unchanged"}
    assert openssl_accepts(tmp_path, "agent", "sslclient", "ca")
    directory.renew(force=True)
    assert openssl_accepts(tmp_path, "agent", "sslclient", "old-ca")


def test_an_expired_ca_is_renewed_and_issues_nothing_before(tmp_path: Path) -> None:
    directory = CertificateDirectory(tmp_path)
    directory.create([SERVER, AGENT], ca_validity=timedelta(minutes=-1))
    for issue in (directory.renew, lambda: directory.create([SERVER, _other_agent()])):
        with pytest.raises(OperatorError, match=r"ca\.crt: CA certificate expired at .*certs renew --ca"):
            issue()
    directory.renew(ca=True, validity=timedelta(days=10))
    directory.renew(validity=timedelta(days=1))
    assert openssl_accepts(tmp_path, "server", "sslserver")


def _other_agent() -> CertificateRequest:
    return CertificateRequest("agent-worker-1", "worker-1", ("worker-1", "cidr:10.1.0.0/24"))


def test_a_ca_of_the_user_can_be_used(tmp_path: Path) -> None:
    """Its two files are put into the directory first."""
    Authority.create("our root").write(tmp_path, with_key=True)
    directory = CertificateDirectory(tmp_path)
    assert actions(directory.create([SERVER])) == {"ca": "unchanged", "server": "created"}
    assert openssl_accepts(tmp_path, "server", "sslserver")


# --- files that do not belong together


def _another_ca(directory: Path) -> None:
    Authority.create("other").write(directory)


def _another_key(directory: Path) -> None:
    Authority.create("other").issue_client("other").write(directory, "other")
    (directory / "other.key").replace(directory / "server.key")


def _no_ca_key(directory: Path) -> None:
    (directory / "ca.key").unlink()


def _no_ca(directory: Path) -> None:
    (directory / "ca.crt").unlink()
    (directory / "ca.key").unlink()


def _leaf_as_ca(directory: Path) -> None:
    (directory / "ca.crt").write_bytes((directory / "agent.crt").read_bytes())
    (directory / "ca.key").write_bytes((directory / "agent.key").read_bytes())


def _broken_certificate(directory: Path) -> None:
    (directory / "server.crt").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


def _broken_key(directory: Path) -> None:
    (directory / "ca.key").write_text("no key")


def _open_key(directory: Path) -> None:
    (directory / "ca.key").chmod(0o644)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_another_ca, r"ca\.crt|server\.crt"),
        (_another_key, r"server\.crt: server\.key does not match server\.crt \(these files do not belong"),
        (_no_ca_key, r"ca\.key: file not found \(the key is required to sign"),
        (_no_ca, r"server\.crt: not issued by ca\.crt \(these files do not belong together"),
        (_leaf_as_ca, r"not issued by ca\.crt|not a CA certificate"),
        (_broken_certificate, r"server\.crt: invalid PEM certificate \(restore it, or move it away"),
        (_broken_key, r"ca\.key: invalid private key"),
        (_open_key, r"ca\.key is readable by others \(chmod 600"),
    ],
)
def test_files_that_do_not_belong_together_are_refused_and_left_as_they_are(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    directory = CertificateDirectory(tmp_path)
    directory.create([SERVER, AGENT])
    damage(tmp_path)
    before = content(tmp_path)
    with pytest.raises(OperatorError, match=message):
        directory.create([SERVER, AGENT, _other_agent()])
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("damage", "bad"),
    [
        (_another_ca, {"ca", "server", "agent"}),
        (_another_key, {"server"}),
        (_broken_certificate, {"server"}),
        (_leaf_as_ca, {"ca", "server", "agent"}),
        (_no_ca_key, set()),
    ],
)
def test_the_listing_names_what_cannot_be_used(
    tmp_path: Path, damage: Callable[[Path], None], bad: set[str]
) -> None:
    directory = CertificateDirectory(tmp_path)
    directory.create([SERVER, AGENT])
    damage(tmp_path)
    assert {each.name for each in directory.stored() if each.problem} == bad


def test_files_of_others_in_the_directory_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "webhook.crt").write_text("anything")
    CertificateDirectory(tmp_path).create([SERVER])
    assert [each.name for each in CertificateDirectory(tmp_path).stored()] == ["ca", "server"]


def test_a_directory_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OperatorError, match=r"cannot write .*file/certs"):
        CertificateDirectory(blocked / "certs").create([SERVER])
    with pytest.raises(OperatorError, match=r"--dir: not a directory: .*/file"):
        CertificateDirectory(blocked).create([SERVER])
