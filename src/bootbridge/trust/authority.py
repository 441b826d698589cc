"""A short-lived certificate authority for a bootstrap, a demo or a test.

`Authority.create("agents")` creates a self-signed root; `issue_server` and `issue_client` sign leaf
certificates with it. Everything is PEM in memory until `write` is called.
"""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

KeyKind = Literal["ecdsa-p256", "rsa-2048"]
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

# Certificates are valid from 5 minutes ago, as clocks of machines differ.
BACKDATED = timedelta(minutes=5)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, both PEM."""

    cert_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return f"<Certificate {x509.load_pem_x509_certificate(self.cert_pem).subject.rfc4514_string()}>"

    def write(self, directory: Path | str, name: str) -> tuple[Path, Path]:
        """Writes `name.crt` and `name.key` (mode 0600) to `directory`, each atomically."""
        cert, key = Path(directory) / f"{name}.crt", Path(directory) / f"{name}.key"
        _write_atomically(key, self.key_pem, mode=0o600)
        _write_atomically(cert, self.cert_pem, mode=0o644)
        return cert, key


class Authority:
    """A root certificate with its key, able to issue leaf certificates."""

    def __init__(self, certificate: x509.Certificate, key: PrivateKey, key_kind: KeyKind) -> None:
        self._certificate = certificate
        self._key = key
        self._key_kind = key_kind

    def __repr__(self) -> str:
        return f"<Authority {self._certificate.subject.rfc4514_string()}>"

    @classmethod
    def create(
        cls, name: str, *, key: KeyKind = "ecdsa-p256", validity: timedelta = timedelta(days=1)
    ) -> Authority:
        private = _new_key(key)
        subject = _subject(name)
        certificate = (
            _builder(subject, subject, private, validity)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True, digital_signature=True), critical=True)
            .sign(private, hashes.SHA256())
        )
        return cls(certificate, private, key)

    @property
    def cert_pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return _key_pem(self._key)

    def issue_server(
        self, names_or_ips: Iterable[str], *, common_name: str = "", validity: timedelta | None = None
    ) -> Certificate:
        """Issues a certificate for a listener with these DNS names and IP addresses."""
        names = list(names_or_ips)
        if not names:
            raise ValueError("a server certificate needs at least one DNS name or IP address")
        alternatives = x509.SubjectAlternativeName([_alternative_name(name) for name in names])
        subject = _subject(common_name or names[0])
        return self._issue(subject, ExtendedKeyUsageOID.SERVER_AUTH, alternatives, validity)

    def issue_client(
        self,
        common_name: str,
        *,
        organisations: Iterable[str] = (),
        names: Iterable[str] = (),
        validity: timedelta | None = None,
    ) -> Certificate:
        """Issues a client certificate; Kubernetes reads organisations as groups.

        ``names``: DNS names, IP addresses and URIs (`cidr:10.1.2.0/24`) of an agent's node.
        """
        subject = _subject(common_name, organisations)
        found = [_alternative_name(name) for name in names]
        alternatives = x509.SubjectAlternativeName(found) if found else None
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH, alternatives, validity)

    def write(self, directory: Path | str, name: str = "ca", *, with_key: bool = False) -> Path:
        """Writes `name.crt` to `directory`, and `name.key` only with `with_key`."""
        if with_key:
            _write_atomically(Path(directory) / f"{name}.key", self.key_pem, mode=0o600)
        path = Path(directory) / f"{name}.crt"
        _write_atomically(path, self.cert_pem, mode=0o644)
        return path

    def _issue(
        self,
        subject: x509.Name,
        usage: x509.ObjectIdentifier,
        alternatives: x509.SubjectAlternativeName | None,
        validity: timedelta | None,
    ) -> Certificate:
        key = _new_key(self._key_kind)
        builder = (
            _builder(subject, self._certificate.subject, key, validity, self._certificate)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                _usage(digital_signature=True, key_encipherment=self._key_kind == "rsa-2048"), critical=True
            )
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return Certificate(signed.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: PrivateKey,
    validity: timedelta | None,
    issued_by: x509.Certificate | None = None,
) -> x509.CertificateBuilder:
    """Returns what roots and leaves have in common; a leaf expires no later than its issuer."""
    now = datetime.now(UTC)
    ends = now + validity if validity is not None else datetime.max.replace(tzinfo=UTC)
    starts = min(now, ends) - BACKDATED
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer_id = own_id
    if issued_by is not None:
        ends = min(ends, issued_by.not_valid_after_utc)
        issuer_id = issued_by.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
        .add_extension(own_id, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False
        )
    )


def _new_key(kind: KeyKind) -> PrivateKey:
    if kind == "ecdsa-p256":
        return ec.generate_private_key(ec.SECP256R1())
    if kind == "rsa-2048":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    raise ValueError(f"unknown key type {kind!r} (known: ecdsa-p256, rsa-2048)")


def _key_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _subject(name: str, organisations: Iterable[str] = ()) -> x509.Name:
    # X.520 allows 64 characters; the alternative names contain the full name.
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organisations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        is_uri = ":" in name
        return x509.UniformResourceIdentifier(name) if is_uri else x509.DNSName(name)


def _usage(**wanted: bool) -> x509.KeyUsage:
    fields = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{field: wanted.get(field, False) for field in fields})


def _write_atomically(path: Path, content: bytes, *, mode: int) -> None:
    """Readers see the old file or the new one; a key is never readable by others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp makes the file 0600.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
