"""The syntax of image references of registries and runtimes: [HOST[:PORT]/]PATH[:TAG]."""

from __future__ import annotations

import re
from typing import Final

NAME_BYTES_MAX: Final = 255
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_NAME: Final = re.compile(rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*", re.ASCII)
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def problem_of(reference: str) -> str:
    """Returns why no image can have this name and tag, with the fix in parentheses; empty if one can."""
    if "@" in reference:
        return "a digest is not a name (the digest follows from the content)"
    name, colon, tag = reference.rpartition(":")
    if not colon or "/" in tag:  # the colon of a port
        return "it has no tag (for example registry.example/bootbridge:0.2.0)"
    if not _TAG.fullmatch(tag):
        return f"invalid tag {tag!r} (letters, digits, '_', '.' and '-', at most 128)"
    if len(name) > NAME_BYTES_MAX or not _NAME.fullmatch(name):
        return f"invalid name {name!r} (lower-case words, digits and '.', '_', '-', separated by '/')"
    return ""
