"""All JSON of Bootbridge has camelCase keys, as Kubernetes has."""

from __future__ import annotations

import re
from collections.abc import Iterator

CAMEL_CASE = re.compile(r"[a-z][a-zA-Z0-9]*")
# Mappings whose keys are data: label values of metrics, flags of the programs, and what a cloud's API names.
DATA = {"dials.failed", "closedConnections", "tls.files", "frontendTLS.files", "failedByHop"}
FOREIGN = {"body", "where", "excluding"}


def other_keys(value: object, path: str = "") -> Iterator[str]:
    """Yields the keys that are not camelCase, with the path to them."""
    if isinstance(value, list):
        for each in value:
            yield from other_keys(each, path)
    if not isinstance(value, dict) or any(path.endswith(each) for each in DATA):
        return
    for key, each in value.items():
        if not CAMEL_CASE.fullmatch(key):
            yield f"{path}.{key}"
        if key not in FOREIGN:
            yield from other_keys(each, f"{path}.{key}" if path else key)
