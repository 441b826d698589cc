"""Instances in the documents of a metadata source: a file or a service.

    {"name": "cp-0", "role": "control-plane", "addresses": ["10.0.0.5"],
     "providerID": "cloud://zone/cp-0", "identity": "tpm:sha256:…"}

A source may also use the names of Constellation's metadata API: `Name`, `Role`, `VPCIP`, `ProviderID`.
Fields that are not known are ignored, because a service may serve other readers too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bootbridge.common import documents
from bootbridge.common.failures import MetadataUnavailable
from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import Instance
from bootbridge.runtime import logs
from bootbridge.trust import init_secret

# More than any cluster has; a list that is longer is not one of instances.
INSTANCES_MAX: Final = 20_000
_CONSTELLATION: Final = {
    "name": "Name",
    "role": "Role",
    "addresses": "VPCIP",
    "providerID": "ProviderID",
    "identity": "Identity",
    "evidence": "Evidence",
}


def instance_from(document: Any, source: str) -> Instance:
    """Converts parsed JSON or YAML; `source` is the document in errors. Raises MetadataUnavailable."""
    if isinstance(document, Mapping):
        found = {
            ours: document.get(theirs) if document.get(ours) is None else document[ours]
            for ours, theirs in _CONSTELLATION.items()
        }
        document = documents.without_nulls(found)
    try:
        return documents.convert(Instance, document, source)
    except OperatorError as error:
        raise MetadataUnavailable(str(error)) from None


def instances_from(document: Any, source: str) -> tuple[Instance, ...]:
    """Converts all that are valid: an incomplete peer is logged, and does not hide the others."""
    if not isinstance(document, list):
        raise MetadataUnavailable(f"{source}: invalid type (must be a list of instances)")
    if len(document) > INSTANCES_MAX:
        raise MetadataUnavailable(f"{source}: {len(document)} instances, at most {INSTANCES_MAX} are read")
    found = []
    for place, each in enumerate(document):
        try:
            found.append(instance_from(each, f"{source}[{place}]"))
        except MetadataUnavailable as error:
            logs.event("metadata", logs.WARNING, "invalid metadata instance ignored", reason=str(error))
    return tuple(found)


def secret_hash_from(value: Any, source: str) -> str:
    """Returns the init secret's hash, or nothing where there is none."""
    if value in (None, ""):
        return ""
    try:
        init_secret.check(value)
    except OperatorError as error:
        raise MetadataUnavailable(f"{source}: {error}") from None
    return str(value)


def host_from(value: Any, source: str) -> str:
    """Returns the load balancer's host or host:port, or nothing where there is none."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MetadataUnavailable(f"{source}: invalid type (must be text such as lb.example:6443)")
    return value.strip()
