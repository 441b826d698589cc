"""Identities: the kind of evidence, and the key that proved it.

    tpm:sha256:<hex>    the attestation key of a TPM
    x509:sha256:<hex>   the key of a certificate
    token:<id>          a shared token

The kind is part of it. A key may be usable for two kinds: the attestation key of a TPM can also sign as the
key of a certificate, and a certificate shows no measurements.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from bootbridge.trust.fingerprint import fingerprint, is_fingerprint


class EvidenceKind(StrEnum):
    TPM = "tpm"
    X509 = "x509"
    TOKEN = "token"


# A token is known to several parties: it proves neither a machine nor what runs on it.
KINDS_WITH_KEY: Final = (EvidenceKind.TPM, EvidenceKind.X509)
TOKEN_ID: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def key_identity(kind: EvidenceKind, key: PublicKeyTypes) -> str:
    return f"{kind}:{fingerprint(key)}"


def token_identity(token_id: str) -> str:
    return f"{EvidenceKind.TOKEN}:{token_id}"


def without_kind(identity: str) -> bool:
    """Whether this is an identity as earlier versions wrote it: a fingerprint alone."""
    return is_fingerprint(identity)


def kind_of(identity: str) -> EvidenceKind | None:
    """Returns the kind that a valid identity names, None for any other text."""
    name, _, rest = identity.partition(":")
    if name in KINDS_WITH_KEY and is_fingerprint(rest):
        return EvidenceKind(name)
    return EvidenceKind.TOKEN if name == EvidenceKind.TOKEN and TOKEN_ID.fullmatch(rest) else None
