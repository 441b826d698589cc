"""Label maps (``--lease-label``) and the syntax check of label selectors (``--lease-label-selector``).

Selecting is the API server's work; a malformed selector is reported at start instead of at every request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bootbridge.errors import BootbridgeError

_SPACE = r"[ \t\r\n]*"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_DOMAIN_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_KEY = rf"(?:(?=[^/]{{1,253}}/){_DOMAIN_LABEL}(?:\.{_DOMAIN_LABEL})*/)?{_NAME}"
_VALUES = rf"\({_SPACE}(?:{_NAME})?(?:{_SPACE},{_SPACE}(?:{_NAME})?)*{_SPACE}\)"
_OPERATION = "|".join(
    (
        rf"{_SPACE}(?:==?|!=){_SPACE}(?:{_NAME})?",
        rf"{_SPACE}[<>]{_SPACE}[+-]?[0-9]{{1,19}}",
        rf"[ \t\r\n]+(?:in|notin){_SPACE}{_VALUES}",
    )
)
_REQUIREMENT = rf"(?:!{_SPACE}{_KEY}|{_KEY}(?:{_OPERATION})?)"
_SELECTOR = rf"{_SPACE}(?:{_REQUIREMENT}{_SPACE}(?:,{_SPACE}{_REQUIREMENT}{_SPACE})*)?"


class LabelError(BootbridgeError):
    """A malformed label map."""


def parse_label_map(text: str) -> dict[str, str]:
    """Parses ``a=b,c=d``; the error messages are those of the original."""
    if not text:
        raise LabelError("empty string provided")
    labels = {}
    for pair in text.split(","):
        key, *values = pair.split("=")
        if len(values) != 1:
            raise LabelError(f"invalid label format: {pair}")
        labels[key.strip()] = values[0].strip()
    return labels


def selector_of(labels: Mapping[str, str]) -> str:
    """Returns the selector of objects that have all these labels."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def is_label_selector(text: str) -> bool:
    """Checks the grammar: ``a=b``, ``a!=b``, ``a in (b,c)``, ``a notin (b)``, ``a``, ``!a``, ``a>1``, ..."""
    return re.fullmatch(_SELECTOR, text) is not None
