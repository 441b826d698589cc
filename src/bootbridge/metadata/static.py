"""Metadata from a file that whoever made the instance put there, YAML or JSON.

    self: {name: cp-0, role: control-plane, addresses: [10.0.0.5]}
    peers:
    - {name: cp-1, role: control-plane, addresses: [10.0.0.6]}
    loadBalancer: lb.example:6443
    initSecretHash: scrypt$…

All but `self` may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.common.yaml_text import YAML_ERRORS
from bootbridge.join_api.instance import Instance
from bootbridge.join_api.instance_documents import host_from, instance_from, instances_from, secret_hash_from

FILE_BYTES_MAX: Final = 8 * 1024 * 1024
FIELDS: Final = ("self", "peers", "loadBalancer", "initSecretHash")


class StaticMetadata:
    """The file is read at every call: it may be written, or mended, after we were started."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def myself(self) -> Instance:
        document = self._document()
        if "self" not in document:
            raise MetadataUnavailable(f"{self._path}: self is missing")
        return instance_from(document["self"], f"{self._path}: self")

    async def peers(self) -> tuple[Instance, ...]:
        return instances_from(self._document().get("peers") or [], f"{self._path}: peers")

    async def load_balancer(self) -> str:
        return host_from(self._document().get("loadBalancer"), f"{self._path}: loadBalancer")

    async def init_secret_hash(self) -> str:
        return secret_hash_from(self._document().get("initSecretHash"), f"{self._path}: initSecretHash")

    def _document(self) -> Mapping[str, Any]:
        document = self._parsed(self._read())
        if not isinstance(document, Mapping):
            raise MetadataUnavailable(f"{self._path}: holds no mapping")
        if unknown := [str(key) for key in document if key not in FIELDS]:
            known = ", ".join(FIELDS)
            raise MetadataUnavailable(f"{self._path}: unknown field {unknown[0]!r} (known are: {known})")
        return document

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise MetadataUnavailable(f"cannot read {self._path}: {error.strerror or error}") from error
        if len(data) > FILE_BYTES_MAX:
            raise MetadataUnavailable(f"{self._path}: is larger than {FILE_BYTES_MAX} bytes")
        return data

    def _parsed(self, data: bytes) -> Any:
        try:
            return yaml.safe_load(data)
        except YAML_ERRORS as error:
            mark = getattr(error, "problem_mark", None)
            where = f" at line {mark.line + 1}" if mark else ""
            raise MetadataUnavailable(f"{self._path}: no YAML{where}") from error
