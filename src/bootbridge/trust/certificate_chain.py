"""Whether a certificate was issued, directly or through others, by somebody who is trusted.

TLS libraries answer this for servers with names. What is asked about here has none: an endorsement
certificate of a TPM, or a machine's certificate whose subject is anything.
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
# What the library raises on certificates that are damaged or too new for it.
CERTIFICATE_PARSE_ERRORS = (
    ValueError,
    TypeError,
    NotImplementedError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
_READ_LATE = ("issuer", "extensions", "not_valid_before_utc", "not_valid_after_utc")
# What is looked at, or restricts only uses that are not made here. Any other critical extension is refused.
_KNOWN_CRITICAL = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
    }
)


class ChainRefused(BootbridgeError):
    """No way leads from the certificate to a trusted one; the text says at which certificate it ends."""


def parse_trust_anchors(pem: object, subject: str) -> tuple[x509.Certificate, ...]:
    """Certificates out of a document an operator wrote."""
    hint = "put one or more PEM certificates there"
    if not isinstance(pem, str) or not pem.strip():
        raise OperatorError("holds no certificates", subject=subject, hint=hint)
    try:
        pems = x509.load_pem_x509_certificates(pem.encode())
        found = tuple(parse_certificate(each.public_bytes(Encoding.DER)) for each in pems)
    except (ChainRefused, *CERTIFICATE_PARSE_ERRORS) as error:
        raise OperatorError(f"cannot be read: {error}", subject=subject, hint=hint) from error
    for each in found:
        if not _is_authority(each):
            text = f"{_named(each)} is no certificate of an authority"
            raise OperatorError(text, subject=subject, hint="give the issuer's certificate")
    return found


def parse_certificate(der: bytes) -> x509.Certificate:
    """A certificate out of a stranger's evidence, with every part read: the library puts that off."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        certificate.public_key()
        certificate.subject.rfc4514_string()
        for part in _READ_LATE:
            getattr(certificate, part)
    except CERTIFICATE_PARSE_ERRORS as error:
        raise ChainRefused(f"a certificate cannot be read: {error}") from error
    return certificate


def require_chain(
    leaf: x509.Certificate,
    intermediates: Sequence[x509.Certificate],
    anchors: Iterable[x509.Certificate],
    now: datetime,
) -> None:
    """Every given anchor is trusted by itself, be it a root or not."""
    if len(intermediates) > INTERMEDIATES_MAX:
        raise ChainRefused(f"{len(intermediates)} certificates in between, {INTERMEDIATES_MAX} are the most")
    trusted = tuple(anchors)
    current, unused = leaf, list(intermediates)
    for below in range(INTERMEDIATES_MAX + 1):
        _require_sound(current, now)
        if any(_issued(anchor, current, below, now) for anchor in trusted):
            return
        issuer = next((each for each in unused if _issued(each, current, below, now)), None)
        if issuer is None:
            raise ChainRefused(f"{_named(current)} was not issued by any trusted authority")
        unused.remove(issuer)
        current = issuer
    raise ChainRefused(f"{_named(leaf)} is too far from any trusted authority")


def _issued(issuer: x509.Certificate, certificate: x509.Certificate, below: int, now: datetime) -> bool:
    """`below`: how many authorities stand between the issuer and the leaf."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *CERTIFICATE_PARSE_ERRORS):
        return False
    return _is_authority(issuer, below) and _within_validity(issuer, now)


def _require_sound(certificate: x509.Certificate, now: datetime) -> None:
    if not _within_validity(certificate, now):
        span = f"{certificate.not_valid_before_utc:%F %T} to {certificate.not_valid_after_utc:%F %T} UTC"
        raise ChainRefused(f"{_named(certificate)} is valid from {span}, and now it is {now:%F %T} UTC")
    critical = {each.oid for each in certificate.extensions if each.critical}
    if unknown := sorted(oid.dotted_string for oid in critical - _KNOWN_CRITICAL):
        raise ChainRefused(f"{_named(certificate)} has an unknown critical extension {', '.join(unknown)}")


def _within_validity(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def _is_authority(certificate: x509.Certificate, below: int = 0) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        if not constraints.ca or (constraints.path_length is not None and constraints.path_length < below):
            return False
        return certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound as missing:
        # RFC 5280 lets an authority do without a key usage, never without basic constraints.
        return missing.oid == ExtensionOID.KEY_USAGE


def _named(certificate: x509.Certificate) -> str:
    name = certificate.subject.rfc4514_string()
    return f"the certificate of {name!r}" if name else f"the certificate {certificate.serial_number:x}"
