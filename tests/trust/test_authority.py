"""Short-lived CAs: OpenSSL and `ssl` accept their certificates, for their names only."""

from __future__ import annotations

import os
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from bootbridge.trust.authority import Authority, KeyKind


def openssl_verify(ca: Path, leaf: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["openssl", "verify", "-x509_strict", *options, "-CAfile", str(ca), str(leaf)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("key", ["ecdsa-p256", "rsa-2048"])
def test_openssl_accepts_issued_certificates_for_their_purpose_only(tmp_path: Path, key: KeyKind) -> None:
    """`openssl verify` in strict mode passes each leaf for its own purpose and fails it for the other one."""
    authority = Authority.create("root", key=key)
    ca = authority.write(tmp_path)
    server, _ = authority.issue_server(["proxy.example", "127.0.0.1", "::1"]).write(tmp_path, "server")
    client, _ = authority.issue_client("agent-7").write(tmp_path, "client")

    assert openssl_verify(ca, server, "-purpose", "sslserver").returncode == 0
    assert openssl_verify(ca, client, "-purpose", "sslclient").returncode == 0
    assert openssl_verify(ca, server, "-purpose", "sslclient").returncode != 0
    assert openssl_verify(ca, client, "-purpose", "sslserver").returncode != 0


def test_server_certificates_are_valid_for_exactly_their_names_and_addresses(tmp_path: Path) -> None:
    """DNS names, IPv4 and IPv6 addresses are alternative names; any other name is refused."""
    authority = Authority.create("root")
    ca = authority.write(tmp_path)
    leaf, _ = authority.issue_server(["proxy.example", "127.0.0.1", "[::1]"]).write(tmp_path, "server")

    assert openssl_verify(ca, leaf, "-verify_hostname", "proxy.example").returncode == 0
    assert openssl_verify(ca, leaf, "-verify_ip", "127.0.0.1").returncode == 0
    assert openssl_verify(ca, leaf, "-verify_ip", "::1").returncode == 0
    assert "hostname mismatch" in openssl_verify(ca, leaf, "-verify_hostname", "other.example").stderr
    assert "IP address mismatch" in openssl_verify(ca, leaf, "-verify_ip", "127.0.0.2").stderr


def test_a_certificate_of_another_authority_of_the_same_name_is_refused(tmp_path: Path) -> None:
    ca = Authority.create("root").write(tmp_path)
    leaf, _ = Authority.create("root").issue_client("agent").write(tmp_path, "client")

    assert openssl_verify(ca, leaf).returncode != 0


def test_an_issued_certificate_cannot_issue_others() -> None:
    authority = Authority.create("root")
    root = x509.load_pem_x509_certificate(authority.cert_pem)
    leaf = x509.load_pem_x509_certificate(authority.issue_client("agent").cert_pem)

    constraints = [c.extensions.get_extension_for_class(x509.BasicConstraints).value for c in (root, leaf)]
    assert [(c.ca, c.path_length) for c in constraints] == [(True, 0), (False, None)]


@pytest.mark.parametrize("key", ["ecdsa-p256", "rsa-2048"])
def test_ssl_loads_the_written_files(tmp_path: Path, key: KeyKind) -> None:
    """As certificate chain and as trust anchor."""
    authority = Authority.create("root", key=key)
    cert, private = authority.issue_server(["localhost"]).write(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, private)
    context.load_verify_locations(authority.write(tmp_path))

    assert context.cert_store_stats()["x509_ca"] == 1


def test_keys_are_readable_by_their_owner_only_and_nothing_else_is_left_in_the_directory(
    tmp_path: Path,
) -> None:
    """Keys have mode 0600 with any umask, and no temporary file remains."""
    target = tmp_path / "pki"
    old_umask = os.umask(0)
    try:
        authority = Authority.create("root")
        authority.write(target, with_key=True)
        authority.issue_client("agent").write(target, "client")
    finally:
        os.umask(old_umask)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in target.iterdir()}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "client.crt": 0o644, "client.key": 0o600}


def test_the_root_key_is_not_written_by_default(tmp_path: Path) -> None:
    Authority.create("root").write(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["ca.crt"]


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "ca.crt" / "occupied").mkdir(parents=True)

    with pytest.raises(OSError):
        Authority.create("root").write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ca.crt"]


def test_a_leaf_does_not_outlive_its_ca() -> None:
    """A longer validity than the root's is cut to the root's, a shorter one is kept."""
    authority = Authority.create("root", validity=timedelta(hours=2))
    root = x509.load_pem_x509_certificate(authority.cert_pem)
    long = x509.load_pem_x509_certificate(authority.issue_client("a", validity=timedelta(days=9)).cert_pem)
    short = x509.load_pem_x509_certificate(authority.issue_client("b", validity=timedelta(hours=1)).cert_pem)

    assert long.not_valid_after_utc == root.not_valid_after_utc
    assert short.not_valid_after_utc < root.not_valid_after_utc
    assert short.not_valid_before_utc < datetime.now(UTC)


def test_a_server_certificate_without_any_name_is_refused() -> None:
    """It could not be verified."""
    with pytest.raises(ValueError, match="at least one DNS name"):
        Authority.create("root").issue_server([])
