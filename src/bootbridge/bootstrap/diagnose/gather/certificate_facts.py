"""Describes certificates: subject, names, validity. Never a key."""

from __future__ import annotations

from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes


def facts(pem: bytes) -> list[dict[str, Any]]:
    """Describes every certificate in a PEM file; an invalid file yields the reason."""
    try:
        return [_facts(each) for each in x509.load_pem_x509_certificates(pem)]
    except ValueError as error:
        return [{"unreadable": str(error)}]


def _facts(certificate: x509.Certificate) -> dict[str, Any]:
    return {
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "names": _names(certificate),
        "notBefore": f"{certificate.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}",
        "notAfter": f"{certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}",
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(each.value) for each in names]
