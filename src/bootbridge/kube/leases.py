"""Leases: read leniently, written in the form that Konnectivity's servers use.

A lease is valid while renewTime (or acquireTime) + duration is in the future. A lease without either
time or without a duration is invalid. All times are seconds since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bootbridge.errors import OperatorError
from bootbridge.kube.objects import Ref
from bootbridge.kube.requests import Json

LEASE_SECONDS = 30
RENEW_SECONDS = 15.0
RENEW_JITTER = 0.04
COLLECT_SECONDS = 15.0
LEASE_NAME_PREFIX = "konnectivity-proxy-server-"

_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Lease:
    """The fields of a Lease that we read; fields that are missing or have a wrong type become empty."""

    name: str
    labels: Mapping[str, str]
    resource_version: str
    holder: str
    renewed: float | None
    acquired: float | None
    duration: int | None

    @classmethod
    def from_json(cls, item: Any) -> Lease:
        metadata, spec = _mapping(item, "metadata"), _mapping(item, "spec")
        duration = spec.get("leaseDurationSeconds")
        return cls(
            name=_text(metadata, "name"),
            labels={k: v for k, v in _mapping(metadata, "labels").items() if isinstance(v, str)},
            resource_version=_text(metadata, "resourceVersion"),
            holder=_text(spec, "holderIdentity"),
            renewed=parse_time(_text(spec, "renewTime")),
            acquired=parse_time(_text(spec, "acquireTime")),
            duration=duration if isinstance(duration, int) and not isinstance(duration, bool) else None,
        )

    @property
    def expires_at(self) -> float | None:
        """When the lease expires; None if it is invalid anyway."""
        since = self.renewed if self.renewed is not None else self.acquired
        return None if since is None or self.duration is None else since + self.duration

    def valid(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at > now


@dataclass(frozen=True, slots=True)
class LeaseCount:
    """How many leases are valid at a moment, and when the next of them expires."""

    valid: int
    next_expiry: float | None

    @classmethod
    def of(cls, leases: Iterable[Lease], now: float) -> LeaseCount:
        ends = [end for lease in leases if (end := lease.expires_at) is not None and end > now]
        return cls(len(ends), min(ends, default=None))


def lease_name(server_id: str) -> str:
    name = LEASE_NAME_PREFIX + server_id
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        raise OperatorError(
            f"invalid server ID {server_id!r}: not usable in a lease name",
            subject="--server-id",
            hint="use lower-case letters, digits, '-' and '.', or turn --enable-lease-controller off",
        )
    return name


def server_lease(
    ref: Ref, server_id: str, labels: Mapping[str, str], renewed: float, found: Json | None = None
) -> Json:
    """Returns the lease that a server writes; with ``found``, a renewal of exactly that version."""
    spec = {
        **_mapping(found, "spec"),
        "holderIdentity": server_id,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": format_time(renewed),
    }
    return lease_object(ref, found, spec, labels=labels)


def lease_object(ref: Ref, found: Json | None, spec: Json, **metadata: Mapping[str, str]) -> Json:
    """Returns a Lease with this spec; keeps the metadata of ``found``, whose labels or annotations grow."""
    known = _mapping(found, "metadata")
    merged = {field: {**_mapping(known, field), **added} for field, added in metadata.items()}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {**known, "name": ref.name, "namespace": ref.namespace, **merged},
        "spec": spec,
    }


def format_time(seconds: float) -> str:
    """Kubernetes' MicroTime: always six digits, always Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if "T" in text else None
    except (ValueError, OverflowError):
        return None


def _mapping(item: Any, field: str) -> Mapping[str, Any]:
    value = item.get(field) if isinstance(item, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _text(item: Mapping[str, Any], field: str) -> str:
    value = item.get(field)
    return value if isinstance(value, str) else ""
