"""A certificate authority: for a bootstrap, a demo or a test, or kept in files (`certificate_directory`).

`Authority.create("agents")` creates a self-signed root; `issue_server` and `issue_client` sign leaf
certificates with it, `reissue` renews them. Everything is PEM in memory until `write` is called.
"""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_ExtensionT = TypeVar("_ExtensionT", bound=x509.ExtensionType)
KeyKind = Literal["ecdsa-p256", "rsa-2048"]
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

# Certificates are valid from 5 minutes ago, as clocks of machines differ.
BACKDATED = timedelta(minutes=5)
# A certificate is renewed when less than 1/4 of its validity is left.
RENEWAL_FRACTION = 4


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

    def __init__(self, certificate: x509.Certificate, key: PrivateKey) -> None:
        self.certificate = certificate
        self._key = key

    def __repr__(self) -> str:
        return f"<Authority {self.certificate.subject.rfc4514_string()}>"

    @classmethod
    def create(
        cls, name: str, *, key: KeyKind | PrivateKey = "ecdsa-p256", validity: timedelta = timedelta(days=1)
    ) -> Authority:
        """`key`: the type of a new key, which those of issued certificates have too, or an existing one."""
        private = _new_key(key) if isinstance(key, str) else key
        return cls._self_signed(_subject(name), private, validity)

    def renewed(self, validity: timedelta) -> Authority:
        """Returns it with a new certificate for the same name and key, which verifies the issued ones too."""
        return self._self_signed(self.certificate.subject, self._key, validity)

    @classmethod
    def _self_signed(cls, subject: x509.Name, key: PrivateKey, validity: timedelta) -> Authority:
        certificate = (
            _builder(subject, subject, key.public_key(), validity)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True, digital_signature=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @property
    def cert_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return _key_pem(self._key)

    def issue_server(
        self,
        names_or_ips: Iterable[str],
        *,
        common_name: str = "",
        validity: timedelta | None = None,
        key: PrivateKey | None = None,
    ) -> Certificate:
        """Issues a certificate for a listener with these names and addresses, for `key` or a new one."""
        names = list(names_or_ips)
        if not names:
            raise ValueError("a server certificate needs at least one DNS name or IP address")
        alternatives = x509.SubjectAlternativeName([_alternative_name(name) for name in names])
        subject = _subject(common_name or names[0])
        return self._issue(subject, ExtendedKeyUsageOID.SERVER_AUTH, alternatives, validity, key)

    def issue_client(
        self,
        common_name: str,
        *,
        organisations: Iterable[str] = (),
        names: Iterable[str] = (),
        validity: timedelta | None = None,
        key: PrivateKey | None = None,
    ) -> Certificate:
        """Issues a client certificate; Kubernetes reads organisations as groups.

        ``names``: DNS names, IP addresses and URIs (`cidr:10.1.2.0/24`) of an agent's node.
        """
        subject = _subject(common_name, organisations)
        found = [_alternative_name(name) for name in names]
        alternatives = x509.SubjectAlternativeName(found) if found else None
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH, alternatives, validity, key)

    def reissue(
        self, old: x509.Certificate, validity: timedelta, names_or_ips: Iterable[str] | None = None
    ) -> bytes:
        """Returns a certificate (PEM) with key, subject and purpose of `old`; its private key is not needed.

        ``names_or_ips``: default those of `old`.
        """
        if names_or_ips is None:
            alternatives = _extension(old, x509.SubjectAlternativeName)
        else:
            alternatives = x509.SubjectAlternativeName([_alternative_name(name) for name in names_or_ips])
        purposes = _extension(old, x509.ExtendedKeyUsage)
        assert purposes is not None
        signed = self._sign(_public_key_of(old), old.subject, purposes, alternatives, validity)
        return signed.public_bytes(serialization.Encoding.PEM)

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
        key: PrivateKey | None,
    ) -> Certificate:
        key = key or _new_key("rsa-2048" if isinstance(self._key, rsa.RSAPrivateKey) else "ecdsa-p256")
        purposes = x509.ExtendedKeyUsage([usage])
        signed = self._sign(key.public_key(), subject, purposes, alternatives, validity)
        return Certificate(signed.public_bytes(serialization.Encoding.PEM), _key_pem(key))

    def _sign(
        self,
        key: PublicKey,
        subject: x509.Name,
        purposes: x509.ExtendedKeyUsage,
        alternatives: x509.SubjectAlternativeName | None,
        validity: timedelta | None,
    ) -> x509.Certificate:
        encipherment = isinstance(key, rsa.RSAPublicKey)
        builder = (
            _builder(subject, self.certificate.subject, key, validity, self.certificate)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True, key_encipherment=encipherment), critical=True)
            .add_extension(purposes, critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: PublicKey,
    validity: timedelta | None,
    issued_by: x509.Certificate | None = None,
) -> x509.CertificateBuilder:
    """Returns what roots and leaves have in common; a leaf expires no later than its issuer."""
    now = datetime.now(UTC)
    ends = now + validity if validity is not None else datetime.max.replace(tzinfo=UTC)
    starts = min(now, ends) - BACKDATED
    own_id = x509.SubjectKeyIdentifier.from_public_key(key)
    issuer_id = own_id
    if issued_by is not None:
        ends = min(ends, issued_by.not_valid_after_utc)
        # A CA that the user brought may have no identifier.
        issuer_id = _extension(issued_by, x509.SubjectKeyIdentifier) or (
            x509.SubjectKeyIdentifier.from_public_key(issued_by.public_key())
        )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
        .add_extension(own_id, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False
        )
    )


def load_private_key(pem: bytes) -> PrivateKey:
    """Parses a key without a passphrase; raises ValueError."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, PrivateKey):
        raise ValueError("not an ECDSA or RSA key")
    return key


def _public_key_of(certificate: x509.Certificate) -> PublicKey:
    key = certificate.public_key()
    if not isinstance(key, PublicKey):
        raise ValueError("not an ECDSA or RSA key")
    return key


def _extension(certificate: x509.Certificate, kind: type[_ExtensionT]) -> _ExtensionT | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


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
