"""The documents in which an operator chooses kinds of evidence, and what is built from them.

`IssuerSettings` is how a machine proves itself, by exactly one kind:

    {"tpm": {"device": "/dev/tpmrm0", "pcrs": [4, 7, 15], "endorsementCertificate": false}}
    {"x509": {"certificate": PATH, "key": PATH}}
    {"token": {"file": PATH}}

`VerifierSettings` is what is accepted from a peer, by any number of kinds:

    {"tpm": {"measurements": {"15": {"expected": "00…", "warnOnly": false}, "4": "ab…"},
             "trustedKeys": ["tpm:sha256:…"],
             "endorsementCAs": "PEM…"},
     "x509": {"cas": "PEM…", "usage": "clientAuth"},
     "token": {"tokens": {"ID": "SECRET"}}}

A new kind is a module with an issuer and a verifier, and a field with its settings in each of the two.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from bootbridge.common import documents
from bootbridge.common.documents import FieldError, NonEmpty, Secret, checked
from bootbridge.errors import OperatorError
from bootbridge.trust.certificate_chain import parse_trust_anchors
from bootbridge.trust.evidence import Issuer, Verifier, token, tpm, x509
from bootbridge.trust.evidence.tpm import Enrolled
from bootbridge.trust.fingerprint import is_fingerprint
from bootbridge.trust.identity import EvidenceKind, kind_of
from bootbridge.trust.measurement import REGISTERS, MeasurementPolicy, Measurements
from bootbridge.trust.tpm.device import TpmDevice

DEFAULT_DEVICE = "/dev/tpmrm0"


@dataclass(frozen=True)
class TpmIssuerSettings:
    device: NonEmpty = DEFAULT_DEVICE
    """The TPM: a device, or unix:PATH or tcp:HOST:PORT of a software TPM."""
    pcrs: tuple[Annotated[int, Field(ge=REGISTERS.start, lt=REGISTERS.stop)], ...] = tuple(REGISTERS)
    """PCRs that a quote shows to any peer that accepts TPM evidence; 15 is always shown. Default: all."""
    endorsement_certificate: bool = True
    """Whether the endorsement certificate is shown; peers that list the attestation key do not need it."""

    @property
    def paths(self) -> list[str]:
        return [self.device.removeprefix("unix:")]

    def issuer(self, subject: str) -> Issuer:
        return tpm.TpmIssuer(
            TpmDevice(self.device, f"{subject}.device"),
            registers=self.pcrs,
            show_endorsement_certificate=self.endorsement_certificate,
        )


@dataclass(frozen=True)
class X509IssuerSettings:
    certificate: NonEmpty
    """File with the certificate chain as PEM, the machine's own certificate first."""
    key: NonEmpty
    """File with the private key as PEM; only its owner may read it."""

    @property
    def paths(self) -> list[str]:
        return [self.certificate, self.key]

    def issuer(self, subject: str) -> Issuer:
        certificate = _content(self.certificate, f"{subject}.certificate")
        return x509.X509Issuer.from_pem(certificate, _secret(self.key, f"{subject}.key"), subject)


@dataclass(frozen=True)
class TokenIssuerSettings:
    # Not in `repr`: an operator may have written the token itself.
    file: NonEmpty = field(repr=False)
    """File with the token, ID.SECRET; only its owner may read it."""

    @property
    def paths(self) -> list[str]:
        return [self.file]

    def issuer(self, subject: str) -> Issuer:
        text = _secret(self.file, f"{subject}.file").decode("utf-8", "replace")
        return token.TokenIssuer(*token.parse_token(text, f"{subject}.file"))


@dataclass(frozen=True)
class IssuerSettings:
    """How a machine proves itself; exactly one kind."""

    __pydantic_config__ = documents.CONFIG

    tpm: TpmIssuerSettings | None = None
    """By the attestation key of a TPM."""
    x509: X509IssuerSettings | None = None
    """By a certificate of an authority that the peers trust."""
    token: TokenIssuerSettings | None = None
    """By a shared token; for development only."""

    def __post_init__(self) -> None:
        if (number := len(list(_chosen(self)))) != 1:
            kinds = ", ".join(each.name for each in fields(self))
            raise FieldError(f"{number} kinds chosen, exactly one is required", hint=f"one of: {kinds}")

    @property
    def paths(self) -> tuple[str, ...]:
        """The device, socket and files on this machine that the issuer needs."""
        ((_, settings),) = _chosen(self)
        return tuple(path for path in settings.paths if path.startswith("/"))

    def issuer(self, prefix: str) -> Issuer:
        """Builds the issuer; `prefix` comes before the field in errors, as in `node.yaml: evidence.`."""
        ((kind, settings),) = _chosen(self)
        issuer: Issuer = settings.issuer(prefix + kind)
        return issuer


def _attestation_key(text: str) -> str:
    """Returns the identity of a TPM; here a fingerprint alone can only be a TPM's."""
    identity = f"{EvidenceKind.TPM}:{text}" if is_fingerprint(text) else text
    if kind_of(identity) is not EvidenceKind.TPM:
        hint = '"tpm:sha256:" and 64 lower-case hexadecimal digits'
        raise FieldError(f"invalid attestation key {documents.quoted(text)}", hint=hint)
    return identity


@dataclass(frozen=True)
class TpmVerifierSettings:
    measurements: Measurements = field(default_factory=dict)
    """Expected values of the TPM's registers; a register that is not listed may have any value."""
    trusted_keys: tuple[Annotated[str, checked(_attestation_key)], ...] = ()
    """Attestation keys that are accepted, as `bootbridge node enrol` prints them: tpm:sha256:…"""
    endorsement_cas: NonEmpty | None = None
    """Certificates of the TPM manufacturers that are accepted, as PEM."""

    def verifier(self, subject: str, is_enrolled: Enrolled | None) -> Verifier:
        pem = self.endorsement_cas
        return tpm.TpmVerifier(
            MeasurementPolicy.of(self.measurements),
            trusted_keys=_enrolled(frozenset(self.trusted_keys), is_enrolled),
            endorsement_authorities=parse_trust_anchors(pem, f"{subject}.endorsementCAs") if pem else (),
            subject=subject,
        )


@dataclass(frozen=True)
class X509VerifierSettings:
    cas: NonEmpty
    """Certificates of the authorities that are accepted, as PEM."""
    usage: x509.Usage = x509.Usage.CLIENT
    """The extended key usage that a certificate must have."""

    def verifier(self, subject: str, _: Enrolled | None) -> Verifier:
        return x509.X509Verifier(
            parse_trust_anchors(self.cas, f"{subject}.cas"), usage=self.usage, subject=subject
        )


@dataclass(frozen=True)
class TokenVerifierSettings:
    tokens: dict[str, Secret] = field(default_factory=dict, repr=False)
    """Accepted tokens: the secret of each ID."""

    def verifier(self, subject: str, _: Enrolled | None) -> Verifier:
        sound = [
            token.require_token(name, secret, f"{subject}.tokens.{name}")
            for name, secret in self.tokens.items()
        ]
        return token.TokenVerifier(dict(sound), subject=subject)


@dataclass(frozen=True)
class VerifierSettings:
    """What is accepted from a peer; one or more kinds."""

    __pydantic_config__ = documents.CONFIG

    tpm: TpmVerifierSettings | None = None
    """A TPM's quote."""
    x509: X509VerifierSettings | None = None
    """A certificate."""
    token: TokenVerifierSettings | None = None
    """A shared token; for development only."""

    def __bool__(self) -> bool:
        return any(_chosen(self))

    @property
    def kinds(self) -> tuple[EvidenceKind, ...]:
        return tuple(EvidenceKind(kind) for kind, _ in _chosen(self))

    def verifiers(self, prefix: str, *, is_enrolled: Enrolled | None = None) -> tuple[Verifier, ...]:
        """Builds a verifier for each kind; none for empty settings.

        `prefix` comes before the field in errors, as in `policy.yaml: evidence.`. `is_enrolled` knows further
        attestation keys, from an inventory that may change while we run.
        """
        return tuple(settings.verifier(prefix + kind, is_enrolled) for kind, settings in _chosen(self))


def chosen_kinds(evidence: Any) -> Any:
    """A kind without settings, as in `tpm:`, has the default settings."""
    if not isinstance(evidence, Mapping):
        return evidence
    return {kind: {} if settings is None else settings for kind, settings in evidence.items()}


def issuer_from(document: Any, name: str) -> Issuer:
    """Builds the issuer that a parsed document describes; `name` is the file in errors."""
    return documents.convert(IssuerSettings, chosen_kinds(document), name).issuer(f"{name}: ")


def verifiers_from(document: Any, name: str) -> tuple[Verifier, ...]:
    """Builds the verifiers that a parsed document describes; `name` is the file in errors."""
    return documents.convert(VerifierSettings, chosen_kinds(document), name).verifiers(f"{name}: ")


def _chosen(settings: IssuerSettings | VerifierSettings) -> Iterator[tuple[str, Any]]:
    for each in fields(settings):
        if (chosen := getattr(settings, each.name)) is not None:
            yield each.name, chosen


def _enrolled(keys: Collection[str], is_enrolled: Enrolled | None) -> Collection[str] | Enrolled:
    if is_enrolled is None:
        return keys
    known_elsewhere = is_enrolled
    return lambda identity: identity in keys or known_elsewhere(identity)


def _content(path: str, subject: str, *, secret: bool = False) -> bytes:
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror or error}", subject=subject) from error
    if secret and mode & 0o077:
        raise OperatorError(f"{path}: readable by others", subject=subject, hint=f"chmod 600 {path}")
    return data


def _secret(path: str, subject: str) -> bytes:
    """Others who can read it could prove to be this machine."""
    return _content(path, subject, secret=True)
