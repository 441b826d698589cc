"""The operator's master secret: generated on first use, stored in one file, never sent to an instance.

The measurement secret is derived from it and sent to the first node. Measurement secret and measurement salt
(not secret) determine the cluster ID.
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
        """Reads the file; generates the secret and creates the file if it does not exist."""
        if not path.exists():
            created = cls(secrets.token_bytes(BYTES), secrets.token_bytes(BYTES), secrets.token_bytes(BYTES))
            write_new_secret(path, created._dump(), _FLAG)
            return created
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
        # Without the cause: its text could contain a part of the secret.
        except (ValueError, TypeError, LookupError):
            hint = "restore it from a backup; a new secret gives another cluster ID"
            raise OperatorError(
                f"invalid master secret file: {str(path)!r}", subject=_FLAG, hint=hint
            ) from None


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
