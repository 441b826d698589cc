"""Metadata from a file, YAML or JSON, that the instance was created with.

    self: {name: cp-0, role: control-plane, addresses: [10.0.0.5]}
    peers:
    - {name: cp-1, role: control-plane, addresses: [10.0.0.6]}
    loadBalancer: lb.example:6443
    initSecretHash: scrypt$…

An inventory of a join service needs `peers` only; an instance needs at least `self`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import SkipValidation

from bootbridge.common import documents
from bootbridge.common.failures import MetadataUnavailable
from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import Instance
from bootbridge.join_api.instance_documents import host_from, instance_from, instances_from, secret_hash_from


@dataclass(frozen=True)
class InstanceFile:
    """Each field is checked when it is asked for: an error in one does not hide the others."""

    __pydantic_config__ = documents.CONFIG

    self_: SkipValidation[Instance | None] = None
    """This instance."""
    peers: SkipValidation[tuple[Instance, ...]] = ()
    """The other instances of the cluster."""
    load_balancer: SkipValidation[str] = ""
    """Host or host:port in front of the control plane; empty if there is none."""
    init_secret_hash: SkipValidation[str] = ""
    """Hash of the init secret (`bootbridge node secret`); empty if this instance must not be initialised."""


class StaticMetadata:
    """Reads the file at every call: it may be written, or corrected, after the start."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def myself(self) -> Instance:
        if (found := self._read().self_) is None:
            raise MetadataUnavailable(f"{self._path}: self: required field missing")
        return instance_from(found, f"{self._path}: self")

    async def peers(self) -> tuple[Instance, ...]:
        return instances_from(self._read().peers or [], f"{self._path}: peers")

    async def load_balancer(self) -> str:
        return host_from(self._read().load_balancer, f"{self._path}: loadBalancer")

    async def init_secret_hash(self) -> str:
        return secret_hash_from(self._read().init_secret_hash, f"{self._path}: initSecretHash")

    def _read(self) -> InstanceFile:
        try:
            with self._path.open("rb") as file:
                data = file.read(documents.DOCUMENT_BYTES_MAX + 1)
            return documents.load(InstanceFile, data, str(self._path))
        except OSError as error:
            raise MetadataUnavailable(f"cannot read {self._path}: {error.strerror or error}") from error
        except OperatorError as error:
            raise MetadataUnavailable(str(error)) from error
