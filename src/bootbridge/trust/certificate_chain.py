"""Verifies certificate chains to trust anchors, without a host name.

TLS libraries verify servers by their names. Endorsement certificates of TPMs have none, and a machine's
certificate may have any subject.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID

from bootbridge.errors import BootbridgeError, OperatorError

INTERMEDIATES_MAX = 4
# What the library raises for malformed and unsupported certificates.
CERTIFICATE_PARSE_ERRORS = (
    ValueError,
    TypeError,
    NotImplementedError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
_LAZY_ATTRIBUTES = ("issuer", "extensions", "not_valid_before_utc", "not_valid_after_utc")
# Checked here, or irrelevant for our use. Any other critical extension is refused.
_KNOWN_CRITICAL = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
    }
)


class ChainRefused(BootbridgeError):
    """The certificate does not chain to a trust anchor; the text names the certificate at fault."""


def parse_trust_anchors(pem: object, subject: str) -> tuple[x509.Certificate, ...]:
    """Parses the CA certificates of a configuration."""
    hint = "one or more PEM certificates are required"
    if not isinstance(pem, str) or not pem.strip():
        raise OperatorError("no certificates", subject=subject, hint=hint)
    try:
        pems = x509.load_pem_x509_certificates(pem.encode())
        found = tuple(parse_certificate(each.public_bytes(Encoding.DER)) for each in pems)
    except (ChainRefused, *CERTIFICATE_PARSE_ERRORS) as error:
        raise OperatorError(f"invalid PEM certificate: {error}", subject=subject, hint=hint) from error
    for each in found:
        if not is_authority(each):
            text = f"{_named(each)} is not a CA certificate"
            raise OperatorError(text, subject=subject, hint="use the issuer's certificate")
    return found


def parse_certificate(der: bytes) -> x509.Certificate:
    """Parses an untrusted certificate completely, which the library defers; raises ChainRefused."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        certificate.public_key()
        certificate.subject.rfc4514_string()
        for part in _LAZY_ATTRIBUTES:
            getattr(certificate, part)
    except CERTIFICATE_PARSE_ERRORS as error:
        raise ChainRefused(f"malformed certificate: {error}") from error
    return certificate


def require_chain(
    leaf: x509.Certificate,
    intermediates: Sequence[x509.Certificate],
    anchors: Iterable[x509.Certificate],
    now: datetime,
) -> None:
    """Raises ChainRefused. Every anchor is trusted as such, whether or not it is a root."""
    if len(intermediates) > INTERMEDIATES_MAX:
        raise ChainRefused(f"{len(intermediates)} intermediate certificates (at most {INTERMEDIATES_MAX})")
    trusted = tuple(anchors)
    current, unused = leaf, list(intermediates)
    for below in range(INTERMEDIATES_MAX + 1):
        _require_valid(current, now)
        if any(_issued(anchor, current, below, now) for anchor in trusted):
            return
        issuer = next((each for each in unused if _issued(each, current, below, now)), None)
        if issuer is None:
            raise ChainRefused(f"{_named(current)} was not issued by a trusted CA")
        unused.remove(issuer)
        current = issuer
    raise ChainRefused(f"{_named(leaf)} has no chain to a trusted CA")


def _issued(issuer: x509.Certificate, certificate: x509.Certificate, below: int, now: datetime) -> bool:
    """`below`: the number of CAs between the issuer and the leaf."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *CERTIFICATE_PARSE_ERRORS):
        return False
    return is_authority(issuer, below) and _within_validity(issuer, now)


def _require_valid(certificate: x509.Certificate, now: datetime) -> None:
    if not _within_validity(certificate, now):
        span = f"{certificate.not_valid_before_utc:%F %T} to {certificate.not_valid_after_utc:%F %T} UTC"
        raise ChainRefused(f"{_named(certificate)} expired or not yet valid: {span} (now: {now:%F %T} UTC)")
    critical = {each.oid for each in certificate.extensions if each.critical}
    if unknown := sorted(oid.dotted_string for oid in critical - _KNOWN_CRITICAL):
        raise ChainRefused(f"{_named(certificate)} has unsupported critical extensions {', '.join(unknown)}")


def _within_validity(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def is_authority(certificate: x509.Certificate, below: int = 0) -> bool:
    """Whether it may issue certificates, with `below` CAs between it and the leaf."""
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        if not constraints.ca or (constraints.path_length is not None and constraints.path_length < below):
            return False
        return certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound as missing:
        # In RFC 5280 a CA may omit the key usage, but not the basic constraints.
        return missing.oid == ExtensionOID.KEY_USAGE


def _named(certificate: x509.Certificate) -> str:
    name = certificate.subject.rfc4514_string()
    return f"certificate {name!r}" if name else f"certificate {certificate.serial_number:x}"
