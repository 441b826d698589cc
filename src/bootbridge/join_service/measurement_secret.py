"""A cluster's measurement secret: its nodes measure a value derived from it into their lock register."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self

from bootbridge.errors import OperatorError
from bootbridge.kube.requests import Json
from bootbridge.trust.key_hierarchy import KeyRefused, cluster_id
from bootbridge.trust.measurement import lock_value

SECRET_NAME: Final = "bootbridge-measurement"
_SECRET, _SALT = "measurementSecret", "measurementSalt"


@dataclass(frozen=True)
class MeasurementSecret:
    secret: bytes = field(repr=False)
    salt: bytes

    @cached_property
    def locked_value(self) -> str:
        """The lock register's value on this cluster's nodes, in hex."""
        return lock_value(cluster_id(self.secret, self.salt)).hex()

    def manifest(self, namespace: str) -> dict[str, Any]:
        data = {_SECRET: self.secret, _SALT: self.salt}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET_NAME, "namespace": namespace},
            "type": "Opaque",
            "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
            # With another secret no node of this cluster could rejoin.
            "immutable": True,
        }

    @classmethod
    def load(cls, secret: Json) -> Self:
        data = secret.get("data") or {}
        try:
            value, salt = (base64.b64decode(data[name], validate=True) for name in (_SECRET, _SALT))
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise OperatorError(
                f"{_SECRET} or {_SALT} missing or not base64", subject=f"Secret {SECRET_NAME}"
            ) from None
        measurement = cls(value, salt)
        try:
            _ = measurement.locked_value  # fails now, not at the first request
        except KeyRefused as error:
            raise OperatorError(str(error), subject=f"Secret {SECRET_NAME}") from None
        return measurement
