"""Which key follows from which: HKDF-SHA256 (RFC 5869), every purpose with the prefix "key-".

    master secret ─┬─ "key-measurementSecret" ─► measurement secret ── "key-clusterID" ─► cluster ID
                   └─ "key-" + UUID of a disk ─► that disk's key

The master secret stays with the user. What a cluster is given is the measurement secret, from which
neither the master secret nor any disk's key follows.
"""

from __future__ import annotations

import re

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from bootbridge.errors import BootbridgeError

KEY_BYTES = 32
# Anything shorter could be guessed.
SECRET_BYTES_MIN = 16

_PREFIX = b"key-"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class KeyRefused(BootbridgeError):
    """No key is derived from this; the text names what is wrong and never shows a secret."""


def hkdf(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    return HKDF(hashes.SHA256(), size, salt, info).derive(secret)


def measurement_secret(master_key: bytes, master_salt: bytes) -> bytes:
    """What the init request carries in place of the master secret."""
    return _derived(master_key, master_salt, "measurementSecret")


def cluster_id(measurement_secret: bytes, measurement_salt: bytes) -> bytes:
    """What a node measures when it takes its lock: only members of one cluster share it."""
    return _derived(measurement_secret, measurement_salt, "clusterID")


def state_disk_key(master_key: bytes, master_salt: bytes, uuid: str) -> bytes:
    """The key of the disk with this UUID, in whatever case it is written.

    The name of a disk comes from elsewhere; were it not held to the form of a UUID, asking for the disk
    "measurementSecret" would give that secret away.
    """
    name = uuid.lower()
    if not _UUID.fullmatch(name):
        raise KeyRefused(f"{uuid!r} is no UUID; one looks like 01234567-89ab-cdef-0123-456789abcdef")
    return _derived(master_key, master_salt, name)


def _derived(secret: bytes, salt: bytes, purpose: str) -> bytes:
    for what, given in (("secret", secret), ("salt", salt)):
        if len(given) < SECRET_BYTES_MIN:
            raise KeyRefused(f"a {what} of {len(given)} bytes is too short, {SECRET_BYTES_MIN} are the least")
    return hkdf(secret, salt, _PREFIX + purpose.encode(), KEY_BYTES)
