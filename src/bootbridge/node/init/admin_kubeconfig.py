"""Validates the admin kubeconfig that an instance returns and points it at a reachable server.

A kubeconfig can make kubectl run a program, read a file or use a proxy. The instance must not cause that, so
only names, keys and certificates are accepted.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from bootbridge.common.yaml_text import YAML_ERRORS, to_yaml
from bootbridge.errors import PeerError

_CLUSTER_FIELDS: Final = frozenset(("server", "certificate-authority-data"))
_USER_FIELDS: Final = frozenset(("client-certificate-data", "client-key-data", "token"))
_FIELDS: Final = frozenset(
    ("apiVersion", "kind", "preferences", "clusters", "users", "contexts", "current-context")
)


def with_server_host(kubeconfig: bytes, host: str) -> bytes:
    """Replaces the host in the cluster's URL and keeps its port; raises PeerError if it is invalid."""
    document = _parse(kubeconfig)
    try:
        (entry,) = document["clusters"]
        cluster, users = entry["cluster"], [each["user"] for each in document.get("users") or ()]
        url = urlsplit(cluster["server"])
        port = f":{url.port}" if url.port else ""
        unexpected = _unexpected_field(document, cluster, users)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise PeerError("kubeconfig of the instance: exactly one cluster with a URL is required") from None
    if unexpected:
        raise PeerError(f"kubeconfig of the instance: unknown field {unexpected!r}")
    cluster["server"] = f"{url.scheme}://{f'[{host}]' if ':' in host else host}{port}"
    return to_yaml(document)


def _unexpected_field(document: dict[str, Any], cluster: dict[str, Any], users: list[Any]) -> str:
    """Returns the first field that kubeadm does not write; empty if there is none."""
    unknown = [*(document.keys() - _FIELDS), *(cluster.keys() - _CLUSTER_FIELDS)]
    unknown += [field for user in users for field in user.keys() - _USER_FIELDS]
    return min(map(str, unknown), default="")


def _parse(kubeconfig: bytes) -> dict[str, Any]:
    try:
        document = yaml.safe_load(kubeconfig)
    # Without the cause: its text quotes the file, which contains a key.
    except YAML_ERRORS:
        raise PeerError("kubeconfig of the instance: invalid YAML") from None
    if not isinstance(document, dict):
        raise PeerError("kubeconfig of the instance: not a mapping")
    return document
