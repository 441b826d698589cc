"""Instances as documents: what a file or a service wrote about one, checked, with the field at fault named.

    {"name": "cp-0", "role": "control-plane", "addresses": ["10.0.0.5"],
     "providerID": "cloud://zone/cp-0", "identity": "sha256:…"}

A service may also spell them as Constellation's metadata API does: `Name`, `Role`, `VPCIP`, `ProviderID`.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import Instance, IPAddress, Role, node_name
from bootbridge.runtime import logs
from bootbridge.trust import init_secret
from bootbridge.trust.fingerprint import is_fingerprint

# More than any cluster has; a list that is longer is not one of instances.
INSTANCES_MAX: Final = 20_000

_OTHER_SPELLINGS: Final = {
    "name": "Name",
    "role": "Role",
    "addresses": "VPCIP",
    "providerID": "ProviderID",
    "identity": "Identity",
}
_ROLES: Final = {
    "control-plane": Role.CONTROL_PLANE,
    "controlplane": Role.CONTROL_PLANE,
    "worker": Role.WORKER,
}


def instance_from(document: Any, source: str) -> Instance:
    """The instance that the document describes; `source` is what errors call it."""
    if not isinstance(document, Mapping):
        raise MetadataUnavailable(f"{source}: is not a mapping with name and role")
    return Instance(
        name=_name(_text(document, "name", source), source),
        role=_role(_text(document, "role", source), source),
        addresses=_addresses(_field(document, "addresses"), source),
        provider_id=_text(document, "providerID", source),
        identity=_identity(_text(document, "identity", source), source),
    )


def instances_from(document: Any, source: str) -> tuple[Instance, ...]:
    """All that can be read: a peer that is half described yet must not hide the others."""
    if not isinstance(document, list):
        raise MetadataUnavailable(f"{source}: is not a list of instances")
    if len(document) > INSTANCES_MAX:
        raise MetadataUnavailable(f"{source}: {len(document)} instances, at most {INSTANCES_MAX} are read")
    found = []
    for place, each in enumerate(document):
        try:
            found.append(instance_from(each, f"{source}[{place}]"))
        except MetadataUnavailable as error:
            logs.event("metadata", logs.WARNING, "a peer is left out", why=str(error))
    return tuple(found)


def secret_hash_from(value: Any, source: str) -> str:
    """The init secret's hash, or nothing where there is none."""
    if value in (None, ""):
        return ""
    try:
        init_secret.check(value)
    except OperatorError as error:
        raise MetadataUnavailable(f"{source}: {error}") from None
    return str(value)


def host_from(value: Any, source: str) -> str:
    """The load balancer's host or host:port, or nothing where there is none."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MetadataUnavailable(f"{source}: is not text such as lb.example or lb.example:6443")
    return value.strip()


def _field(document: Mapping[str, Any], name: str) -> Any:
    value = document.get(name)
    return document.get(_OTHER_SPELLINGS[name]) if value is None else value


def _text(document: Mapping[str, Any], name: str, source: str) -> str:
    value = _field(document, name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MetadataUnavailable(f"{source}: {name} is not text")
    return value.strip()


def _name(text: str, source: str) -> str:
    if not text:
        raise MetadataUnavailable(f"{source}: name is missing")
    try:
        return node_name(text)
    except OperatorError as error:
        raise MetadataUnavailable(f"{source}: name: {error}") from None


def _role(text: str, source: str) -> Role:
    if not text:
        raise MetadataUnavailable(f"{source}: role is missing")
    try:
        return _ROLES[text.lower()]
    except KeyError:
        raise MetadataUnavailable(
            f"{source}: role {text!r} is neither {Role.CONTROL_PLANE} nor {Role.WORKER}"
        ) from None


def _addresses(value: Any, source: str) -> tuple[IPAddress, ...]:
    if isinstance(value, str):
        value = [value] if value else []
    if value is None:
        return ()
    if not isinstance(value, list):
        raise MetadataUnavailable(f"{source}: addresses is not a list")
    try:
        # Text only: to ip_address a number is an address too.
        return tuple(dict.fromkeys(ip_address(str(each)) for each in value))
    except ValueError as error:
        raise MetadataUnavailable(f"{source}: addresses: {error}") from None


def _identity(text: str, source: str) -> str:
    if text and not is_fingerprint(text):
        raise MetadataUnavailable(f"{source}: identity is not sha256: and 64 hexadecimal digits")
    return text
