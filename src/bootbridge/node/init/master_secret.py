"""The user's master secret: made on first use, kept in one file, and never sent anywhere.

From it comes the measurement secret, which the first node is given; with the measurement salt, which is
no secret but belongs to the same cluster, both give the cluster's ID.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bootbridge.common.secret_files import read_secret, write_new_secret
from bootbridge.errors import OperatorError
from bootbridge.trust import key_hierarchy

BYTES = 32
_FLAG = "--secrets"


@dataclass(frozen=True)
class MasterSecret:
    key: bytes = field(repr=False)
    salt: bytes
    measurement_salt: bytes

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """The one in the file, which is made if it is not there yet."""
        if not path.exists():
            made = cls(secrets.token_bytes(BYTES), secrets.token_bytes(BYTES), secrets.token_bytes(BYTES))
            write_new_secret(path, made._dump(), _FLAG)
            return made
        return cls._load(read_secret(path, _FLAG), path)

    @property
    def measurement_secret(self) -> bytes:
        return key_hierarchy.measurement_secret(self.key, self.salt)

    def _dump(self) -> bytes:
        document = {
            "key": _text(self.key),
            "salt": _text(self.salt),
            "measurementSalt": _text(self.measurement_salt),
        }
        return json.dumps(document, indent=2).encode() + b"\n"

    @classmethod
    def _load(cls, data: bytes, path: Path) -> Self:
        try:
            document = json.loads(data)
            return cls(*(_bytes(document[name]) for name in ("key", "salt", "measurementSalt")))
        # The error's own text could show a piece of the secret.
        except (ValueError, TypeError, LookupError):
            hint = "restore it from a copy; a new one makes another cluster"
            raise OperatorError(f"{path} holds no master secret", subject=_FLAG, hint=hint) from None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: Any) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError from None
    if len(data) < key_hierarchy.SECRET_BYTES_MIN:
        raise ValueError
    return data
