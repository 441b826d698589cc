"""One certificate of a directory: what it is for, for which names, until when, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from cryptography import x509

from bootbridge.trust.authority import BACKDATED, RENEWAL_FRACTION

CA, FRONTEND_CA, SERVER, AGENT, FRONTEND = "ca", "frontend-ca", "server", "agent", "frontend"
AGENT_PREFIX = f"{AGENT}-"


class CertificateRole(StrEnum):
    CA = "ca"
    SERVER = "server"
    AGENT = "agent"
    FRONTEND = "frontend"


class CertificateState(StrEnum):
    """INVALID: the file cannot be used, or does not belong to the others in the directory."""

    VALID = "valid"
    EXPIRING = "expiring"
    EXPIRED = "expired"
    NOT_YET_VALID = "not-yet-valid"
    INVALID = "invalid"


_ROLES = {
    CA: CertificateRole.CA,
    FRONTEND_CA: CertificateRole.CA,
    SERVER: CertificateRole.SERVER,
    AGENT: CertificateRole.AGENT,
    FRONTEND: CertificateRole.FRONTEND,
}


def role_of(name: str) -> CertificateRole | None:
    """Returns the role of the files `name.crt` and `name.key`; None if they are not ours."""
    return CertificateRole.AGENT if name.startswith(AGENT_PREFIX) else _ROLES.get(name)


def issuer_of(name: str) -> str:
    """Returns the CA of a certificate. Callers over TCP have their own: an agent must not be a caller."""
    return FRONTEND_CA if name in (FRONTEND, FRONTEND_CA) else CA


@dataclass(frozen=True)
class StoredCertificate:
    """`certificate` is None if it cannot be read; `problem` then has the reason."""

    directory: Path
    name: str
    role: CertificateRole
    certificate: x509.Certificate | None
    has_key: bool
    problem: str = ""

    @property
    def cert_path(self) -> Path:
        return self.directory / f"{self.name}.crt"

    @property
    def key_path(self) -> Path:
        return self.directory / f"{self.name}.key"

    @property
    def names(self) -> tuple[str, ...]:
        return alternative_names(self.certificate) if self.certificate else ()

    @property
    def expires(self) -> datetime | None:
        return self.certificate.not_valid_after_utc if self.certificate else None

    def state(self, now: datetime) -> CertificateState:
        if self.certificate is None or self.problem:
            return CertificateState.INVALID
        if now < self.certificate.not_valid_before_utc:
            return CertificateState.NOT_YET_VALID
        left = self.certificate.not_valid_after_utc - now
        if left <= timedelta():
            return CertificateState.EXPIRED
        due = left < lifetime(self.certificate) / RENEWAL_FRACTION
        return CertificateState.EXPIRING if due else CertificateState.VALID

    def document(self, now: datetime) -> dict[str, Any]:
        found = self.certificate
        return {
            "name": self.name,
            "role": self.role,
            "certificate": str(self.cert_path),
            "key": str(self.key_path) if self.has_key else None,
            "subject": found.subject.rfc4514_string() if found else None,
            "names": list(self.names),
            "validFrom": _time(found.not_valid_before_utc) if found else None,
            "expiresAt": _time(found.not_valid_after_utc) if found else None,
            "state": self.state(now),
            "problem": self.problem or None,
        }


def lifetime(certificate: x509.Certificate) -> timedelta:
    """Returns the validity with which it was issued."""
    return certificate.not_valid_after_utc - certificate.not_valid_before_utc - BACKDATED


def alternative_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Returns DNS names, IP addresses and URIs, as they are given to `Authority`."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
