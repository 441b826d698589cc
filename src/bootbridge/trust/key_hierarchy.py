"""Key derivation by HKDF-SHA256 (RFC 5869), with the prefix "key-" for every purpose.

    master secret ─┬─ "key-measurementSecret" ─► measurement secret ── "key-clusterID" ─► cluster ID
                   └─ "key-" + UUID of a disk ─► that disk's key

The master secret stays with the user. A cluster gets the measurement secret, from which neither the master
secret nor a disk's key can be derived.
"""

from __future__ import annotations

import re

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from bootbridge.errors import BootbridgeError

KEY_BYTES = 32
# Shorter ones could be guessed.
SECRET_BYTES_MIN = 16

_PREFIX = b"key-"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class KeyRefused(BootbridgeError):
    """Invalid input for a key derivation; the text never contains a secret."""


def hkdf(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    return HKDF(hashes.SHA256(), size, salt, info).derive(secret)


def measurement_secret(master_key: bytes, master_salt: bytes) -> bytes:
    """The init request contains it instead of the master secret."""
    return _derived(master_key, master_salt, "measurementSecret")


def cluster_id(measurement_secret: bytes, measurement_salt: bytes) -> bytes:
    """Returns what nodes of this cluster measure as their lock."""
    return _derived(measurement_secret, measurement_salt, "clusterID")


def state_disk_key(master_key: bytes, master_salt: bytes, uuid: str) -> bytes:
    """Returns the key of the disk with this UUID, in upper or lower case.

    The UUID is validated: else a request for the disk "measurementSecret" would return that secret.
    """
    name = uuid.lower()
    if not _UUID.fullmatch(name):
        raise KeyRefused(f"invalid UUID {uuid!r} (expected the form 01234567-89ab-cdef-0123-456789abcdef)")
    return _derived(master_key, master_salt, name)


def _derived(secret: bytes, salt: bytes, purpose: str) -> bytes:
    for what, given in (("secret", secret), ("salt", salt)):
        if len(given) < SECRET_BYTES_MIN:
            raise KeyRefused(f"{what} too short: {len(given)} bytes (at least {SECRET_BYTES_MIN})")
    return hkdf(secret, salt, _PREFIX + purpose.encode(), KEY_BYTES)
