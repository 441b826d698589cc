"""What must be installed on a node, by hash: fetched, checked, and put in place; or found there already.

How that is done: `component_install`, `component_download`, `component_archive`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from bootbridge.common.documents import CONFIG, FieldError, checked
from bootbridge.wire.proto import Message, at

_HASH = re.compile(r"sha256:[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Component(Message):
    """Without a `url` it is only checked: the image that the instance booted from brings it."""

    __pydantic_config__ = CONFIG

    url: str = at(1, "")
    """Where it is fetched from; empty if the instance has it already."""
    hash: str = at(2, "")
    """sha256:<64 hexadecimal digits> of what is fetched, or of the file that is there."""
    install_path: str = at(3, "")
    """Absolute path of the file, or of the directory that the archive is extracted to."""
    extract: bool = at(4, False)
    """Whether it is an archive."""

    @property
    def faults(self) -> list[str]:
        """Returns what is wrong with it, from a document or from the wire: an unsafe path, no valid hash."""
        path, found = self.install_path, []
        if not path.startswith("/") or not path.strip("/") or ".." in path.split("/") or "\0" in path:
            found.append(f"invalid installPath {path!r}: must be absolute")
        if self.hash and not _HASH.fullmatch(self.hash):
            found.append(f"invalid hash {self.hash!r}: must be sha256:<64 hexadecimal digits>")
        # It will run as root: over plain HTTP anybody on the way could put another in its place.
        if not self.hash and self.url.lower().startswith("http:"):
            found.append("hash required, because the URL is plain http")
        return found


def _sound(component: Component) -> Component:
    if wrong := component.faults:
        raise FieldError("; ".join(wrong))
    return component


# As operators write it; one that comes over the wire is judged by its reader.
ComponentSpec = Annotated[Component, checked(_sound)]
