"""The kubeconfig that an init brings home: nothing in it but keys, and a server that the user can reach.

It comes from the instance, and kubectl does what a kubeconfig says: run a program, read a file, ask a proxy.
So only the cluster's own keys and names are let through.
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
    """The same kubeconfig with another host in its one cluster's URL; the port is kept."""
    document = _document(kubeconfig)
    try:
        (entry,) = document["clusters"]
        cluster, users = entry["cluster"], [each["user"] for each in document.get("users") or ()]
        url = urlsplit(cluster["server"])
        port = f":{url.port}" if url.port else ""
        strange = _strange(document, cluster, users)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise PeerError("the instance's kubeconfig does not hold exactly one cluster with a URL") from None
    if strange:
        raise PeerError(f"the instance's kubeconfig holds {strange!r}, which no kubeadm writes")
    cluster["server"] = f"{url.scheme}://{f'[{host}]' if ':' in host else host}{port}"
    return to_yaml(document)


def _strange(document: dict[str, Any], cluster: dict[str, Any], users: list[Any]) -> str:
    """A field that must not be in it; empty if there is none."""
    unknown = [*(document.keys() - _FIELDS), *(cluster.keys() - _CLUSTER_FIELDS)]
    unknown += [field for user in users for field in user.keys() - _USER_FIELDS]
    return min(map(str, unknown), default="")


def _document(kubeconfig: bytes) -> dict[str, Any]:
    try:
        document = yaml.safe_load(kubeconfig)
    # Without the cause: its text quotes the file, and that holds a key.
    except YAML_ERRORS:
        raise PeerError("the instance's kubeconfig cannot be read") from None
    if not isinstance(document, dict):
        raise PeerError("the instance's kubeconfig cannot be read")
    return document
