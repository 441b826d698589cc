"""Fingerprints: names of public keys in policies, inventories and audit lines."""

from __future__ import annotations

import hashlib
import re

from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


def fingerprint(key: PublicKeyTypes) -> str:
    """Returns "sha256:" and the hex hash of the key's DER SubjectPublicKeyInfo."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def is_fingerprint(text: str) -> bool:
    return _FINGERPRINT.fullmatch(text) is not None
