"""An instance as its metadata describes it: name, role, addresses, and the key of its evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, StringConstraints

from bootbridge.common.documents import CONFIG, FieldError, checked, quoted
from bootbridge.errors import OperatorError
from bootbridge.trust.fingerprint import is_fingerprint

IPAddress = IPv4Address | IPv6Address

_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
NODE_NAME_CHARACTERS_MAX = 253


class Role(StrEnum):
    CONTROL_PLANE = "control-plane"
    WORKER = "worker"


def node_name(name: str) -> str:
    """Returns an instance's name as Kubernetes accepts it; raises OperatorError if there is none."""
    wanted = name.lower().replace("_", "-")
    if len(wanted) > NODE_NAME_CHARACTERS_MAX or not _NODE_NAME.fullmatch(wanted):
        hint = "letters, digits, '-' and '.', beginning and ending with a letter or digit"
        raise OperatorError(f"invalid node name {quoted(name)}", hint=hint)
    return wanted


def _role(value: Any) -> Any:
    """Constellation writes `ControlPlane` and `Worker`."""
    text = value.strip().lower() if isinstance(value, str) else value
    return Role.CONTROL_PLANE.value if text == "controlplane" else text


def _addresses(value: Any) -> Any:
    """Constellation writes one address without a list."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _distinct(addresses: tuple[IPAddress, ...]) -> tuple[IPAddress, ...]:
    return tuple(dict.fromkeys(addresses))


def _identity(text: str) -> str:
    if text and not is_fingerprint(text):
        hint = '"sha256:" and 64 lower-case hexadecimal digits'
        raise FieldError(f"invalid fingerprint {quoted(text)}", hint=hint)
    return text


_Text = Annotated[str, StringConstraints(strip_whitespace=True)]


@dataclass(frozen=True)
class Instance:
    """From the metadata; the instance itself cannot choose any of it."""

    __pydantic_config__ = CONFIG

    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1), checked(node_name)]
    """Name of the instance, and of its node."""
    role: Annotated[Role, BeforeValidator(_role)]
    """What the instance may become."""
    addresses: Annotated[tuple[IPAddress, ...], BeforeValidator(_addresses), checked(_distinct)] = ()
    """IP addresses of the instance; the node's own address is one of them."""
    provider_id: _Text = ""
    """The cloud's name for the instance, as the kubelet reports it."""
    identity: Annotated[_Text, checked(_identity)] = ""
    """Fingerprint of the key that its evidence is made with; empty if it is not known beforehand."""


class Metadata(Protocol):
    """A source of metadata. Each call may raise MetadataUnavailable."""

    async def myself(self) -> Instance: ...
    async def peers(self) -> tuple[Instance, ...]: ...

    async def load_balancer(self) -> str:
        """Returns the host or host:port in front of the control planes; empty if there is none."""
        ...

    async def init_secret_hash(self) -> str:
        """Returns the output of `bootbridge node secret`; empty if this instance must not be initialised."""
        ...
