"""Names of fields in JSON and YAML: camelCase, as in Kubernetes. Light, because the proxies import it."""

from __future__ import annotations

from typing import Final

_ACRONYMS: Final = {"id": "ID", "ips": "IPs", "sans": "SANs", "cas": "CAs", "cidr": "CIDR", "tls": "TLS"}


def camel_case(name: str) -> str:
    """Returns the name of a field in documents: `api_server_sans` is `apiServerSANs`."""
    head, *rest = name.rstrip("_").split("_")
    return head + "".join(_ACRONYMS.get(part, part.capitalize()) for part in rest)
