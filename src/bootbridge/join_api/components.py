"""What must be installed on a node, by hash: fetched, checked, and put in place; or found there already.

`node.components` installs them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlsplit

from bootbridge.common.documents import CONFIG, FieldError, checked
from bootbridge.wire.proto import Message, at

SCHEMES: Final = ("https", "http", "file", "data")
_HASH: Final = re.compile(r"sha256:[0-9a-fA-F]{64}")
_REMOTE: Final = ("https", "http")


def url_fault(url: str) -> str:
    """Returns why a URL is refused, without quoting it (it may contain a password); empty if it is accepted.

    Blanks and control characters are refused, because parsers differ on them: some drop them, so that one
    reader sees another scheme or host than the next.
    """
    if any(character == " " or not character.isprintable() for character in url):
        return "invalid URL: blank or control character (remove it, or write a blank in a path as %20)"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "invalid URL"
    if parts.scheme not in SCHEMES:
        return f"unsupported scheme {parts.scheme!r} (use https:, http:, file: or data:)"
    if parts.scheme in _REMOTE and not parts.hostname:
        return "invalid URL: host missing"
    return ""


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
        if self.url and (fault := url_fault(self.url)):
            found.append(fault)
        # It will run as root. TLS proves the server, not the file: a mirror or its storage can be replaced.
        elif not self.hash and (scheme := urlsplit(self.url).scheme) in _REMOTE:
            found.append(
                f'hash required for an {scheme} URL (add "hash: sha256:<64 hexadecimal digits>", '
                f'as printed by "sha256sum FILE" for a copy that you trust)'
            )
        return found


def _sound(component: Component) -> Component:
    if wrong := component.faults:
        raise FieldError("; ".join(wrong))
    return component


# As operators write it; one that comes over the wire is judged by its reader.
ComponentSpec = Annotated[Component, checked(_sound)]
