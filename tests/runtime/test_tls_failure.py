"""Failed TLS handshakes: the reason names the certificate, what it has, and the fix, on both ends."""

from __future__ import annotations

import ssl
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from bootbridge.runtime.tls_failure import tls_failure
from bootbridge.trust.authority import Authority

AUTHORITY = Authority.create("tunnel CA")


class Handshake:
    """A TLS handshake in memory; what each end raised."""

    def __init__(self, client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(to_client, to_server, server_hostname=name)
        self.server = server.wrap_bio(to_server, to_client, server_side=True)
        self.client_reason = self.server_reason = ""
        for _ in range(3):
            self.client_reason = self.client_reason or self._advance(self.client)
            self.server_reason = self.server_reason or self._advance(self.server)

    @staticmethod
    def _advance(end: ssl.SSLObject) -> str:
        try:
            end.do_handshake()
            end.read(1)
        except ssl.SSLWantReadError:
            return ""
        except ssl.SSLError as error:
            return tls_failure(error, end)
        return ""


def listener(
    folder: Path, *names: str, authority: Authority = AUTHORITY, validity: timedelta | None = None
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue_server(names, validity=validity).write(folder, "server"))
    return context


def caller(authority: Authority = AUTHORITY) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.cert_pem.decode())


@pytest.mark.parametrize("host", ["other.example", "192.0.2.7", "fd00::7"])
def test_a_wrong_name_is_named_with_those_that_the_certificate_has(tmp_path: Path, host: str) -> None:
    found = Handshake(caller(), listener(tmp_path, "proxy.example", "127.0.0.1", "::1"), host)
    assert found.client_reason == (
        f"TLS: the peer's certificate is not valid for {host}, only for proxy.example, 127.0.0.1, ::1 "
        "(dial one of its names, or issue it for this one)"
    )
    assert found.server_reason == (
        "TLS: the peer rejected our certificate: bad certificate "
        "(its names, its CA or its dates; the peer's log has the reason)"
    )


def test_a_certificate_without_alternative_names_is_called_so(tmp_path: Path) -> None:
    """As openssl makes it by default, with a common name only."""
    cert, key = tmp_path / "server.crt", tmp_path / "server.key"
    request = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    request += ["-subj", "/CN=proxy.example", "-out", str(cert), "-keyout", str(key)]
    subprocess.run(request, check=True, capture_output=True)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=cert)
    server.load_cert_chain(cert, key)
    client.hostname_checks_common_name = False
    found = Handshake(client, server, "proxy.example")
    assert "has no alternative names (issue it for this name)" in found.client_reason


def test_names_of_a_stranger_do_not_fill_the_log(tmp_path: Path) -> None:
    names = [f"{'n' * 60}.{number}.{'x' * 60}.example" for number in range(500)]
    found = Handshake(caller(), listener(tmp_path, *names), "proxy.example")
    assert found.client_reason.count("example") == 1
    assert ", …" in found.client_reason
    assert len(found.client_reason) < 1200


def test_an_unknown_ca_is_named_on_both_ends(tmp_path: Path) -> None:
    found = Handshake(
        caller(Authority.create("another CA")), listener(tmp_path, "proxy.example"), "proxy.example"
    )
    assert "'tunnel CA', not in the CA file, issued the peer's certificate" in found.client_reason
    assert found.server_reason == (
        "TLS: the peer rejected our certificate: unknown ca (the peer trusts another CA)"
    )


def test_an_expired_certificate_is_named_with_the_date(tmp_path: Path) -> None:
    expired = listener(tmp_path, "proxy.example", validity=timedelta(minutes=-1))
    found = Handshake(caller(), expired, "proxy.example")
    assert "certificate has expired: " in found.client_reason
    assert "GMT" in found.client_reason
    assert (
        "our certificate: certificate expired (renew it, or correct the peer's clock)" in found.server_reason
    )


def test_a_missing_client_certificate_is_named_on_the_client(tmp_path: Path) -> None:
    server = listener(tmp_path, "proxy.example")
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cadata=AUTHORITY.cert_pem.decode())
    found = Handshake(caller(), server, "proxy.example")
    assert found.client_reason == "TLS: certificate required: we sent none"
    assert "peer did not return a certificate" in found.server_reason


def test_other_failures_keep_the_words_of_openssl(tmp_path: Path) -> None:
    server, client = listener(tmp_path, "proxy.example"), caller()
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    found = Handshake(client, server, "proxy.example")
    assert found.server_reason == "TLS: unsupported protocol"
    assert found.client_reason == "TLS: the peer sent the alert protocol version"
