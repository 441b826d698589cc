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
from bootbridge.trust.identity import EvidenceKind, kind_of, without_kind

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
    if without_kind(text):
        hint = (
            f'write identity: "tpm:{text}" for the key of a TPM, or "x509:{text}" for that of a certificate'
        )
        raise FieldError("fingerprint without a kind of evidence", hint=hint)
    if text and kind_of(text) is None:
        hint = '"tpm:sha256:" or "x509:sha256:" and 64 lower-case hexadecimal digits, or "token:" and an ID'
        raise FieldError(f"invalid identity {quoted(text)}", hint=hint)
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
    """Kind and key of its evidence, as `bootbridge node enrol` prints it: tpm:sha256:…, x509:sha256:… or
    token:ID; empty if it is not known beforehand."""
    evidence: tuple[EvidenceKind, ...] = ()
    """Kinds of evidence that are accepted from this instance; empty: all that the policy accepts."""


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
