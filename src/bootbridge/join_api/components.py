"""What must be installed on a node, by hash: fetched, checked, and put in place; or found there already.

How that is done: `component_install`, `component_download`, `component_archive`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from bootbridge.errors import OperatorError
from bootbridge.wire.proto import Message, at

_HASH = re.compile(r"sha256:[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Component(Message):
    """Without a `url` it is only checked: the image that the instance booted from brings it."""

    url: str = at(1, "")
    hash: str = at(2, "")  # sha256:<hex>
    install_path: str = at(3, "")
    extract: bool = at(4, False)

    @property
    def document(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "hash": self.hash,
            "installPath": self.install_path,
            "extract": self.extract,
        }

    @property
    def faults(self) -> list[str]:
        """What is wrong with it, whoever it came from: a path that leads elsewhere, a hash that is none."""
        path, found = self.install_path, []
        if not path.startswith("/") or not path.strip("/") or ".." in path.split("/") or "\0" in path:
            found.append(f"{path!r} is no absolute path")
        if self.hash and not _HASH.fullmatch(self.hash):
            found.append(f"{self.hash!r} is no hash like sha256:<64 hexadecimal digits>")
        # It will run as root: over plain HTTP anybody on the way could put another in its place.
        if not self.hash and self.url.lower().startswith("http:"):
            found.append("it comes over plain http, and has no hash that it could be known by")
        return found

    @classmethod
    def load(cls, document: Any, subject: str) -> Self:
        """From parsed JSON or YAML."""
        if not isinstance(document, Mapping) or not isinstance(document.get("installPath"), str):
            raise OperatorError("a component needs an installPath", subject=subject)
        url, digest = document.get("url", ""), document.get("hash", "")
        extract = document.get("extract", False)
        wrong = [
            f"{name} is not text"
            for name, value in (("url", url), ("hash", digest))
            if type(value) is not str
        ]
        wrong += [] if isinstance(extract, bool) else ["extract is neither true nor false"]
        known = ("url", "hash", "installPath", "extract")
        wrong += [f"unknown field {key!r}" for key in document if key not in known]
        component = None if wrong else cls(url, digest, document["installPath"], extract)
        if component is None or (wrong := component.faults):
            raise OperatorError(f"component {document['installPath']}: {'; '.join(wrong)}", subject=subject)
        return component
