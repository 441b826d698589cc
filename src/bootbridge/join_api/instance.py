"""An instance as the infrastructure knows it: name, role, addresses, and how it is recognised."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol

from bootbridge.errors import OperatorError

IPAddress = IPv4Address | IPv6Address

_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
NODE_NAME_CHARACTERS_MAX = 253


class Role(StrEnum):
    CONTROL_PLANE = "control-plane"
    WORKER = "worker"


@dataclass(frozen=True)
class Instance:
    """What the metadata says; nothing here was claimed by the instance itself."""

    name: str
    role: Role
    addresses: tuple[IPAddress, ...]
    provider_id: str = ""
    # The key its evidence must be made with ("sha256:…", as Attested.identity); empty: not known beforehand.
    identity: str = ""


class Metadata(Protocol):
    """Where an instance learns about itself and its peers. Each call may raise MetadataUnavailable."""

    async def myself(self) -> Instance: ...
    async def peers(self) -> tuple[Instance, ...]: ...

    async def load_balancer(self) -> str:
        """Host or host:port in front of the control plane; empty when there is none."""
        ...

    async def init_secret_hash(self) -> str:
        """As `bootbridge node secret` writes it; empty when this instance must not be initialised."""
        ...


def node_name(name: str) -> str:
    """An instance's name as Kubernetes wants it; an error if it cannot be one."""
    wanted = name.lower().replace("_", "-")
    if len(wanted) > NODE_NAME_CHARACTERS_MAX or not _NODE_NAME.fullmatch(wanted):
        hint = "letters, digits, '-' and '.', beginning and ending with a letter or digit"
        raise OperatorError(f"{name!r} cannot be a node's name", hint=hint)
    return wanted
