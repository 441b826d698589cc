"""Reads YAML as Go's sigs.k8s.io/yaml does, which Kubernetes and OpenShift use for their configuration.

PyYAML implements YAML 1.1; Go's parser a mixture of 1.1 and 1.2: `1:30` and dates are strings, `0o17` and
`017` are octal, `1e3` is a number, `y` and `n` are booleans, an integer of more than 64 bits is a float.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import yaml

_GO_SCALAR = "!bootbridge-go-scalar"
_MERGE = "tag:yaml.org,2002:merge"
_TRUE = frozenset({"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
_FALSE = frozenset({"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_SPECIAL = re.compile(r"\.(nan|NaN|NAN)|[-+]?\.(inf|Inf|INF)")
# strconv.ParseInt with base 0, after underscores were removed.
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1
# encoding/json writes larger floats with an exponent.
_PLAIN_FLOAT_MAX = 1e21


class _Loader(yaml.SafeLoader):
    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            return _MERGE if value == "<<" else _GO_SCALAR
        return super().resolve(kind, value, implicit)


def load(text: str) -> Any:
    """Returns the document's value; raises what PyYAML raises on invalid input."""
    return yaml.load(text, Loader=_Loader)


def scalar(text: str) -> str | bool | int | float | None:
    """Returns the value of a plain scalar."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if text in _NULL:
        return None
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", "", 1))
    if text[0] == ".":
        return _number(text, text) if _FLOAT.fullmatch(text) else text
    if text[0] not in "+-0123456789":
        return text
    plain = text.replace("_", "")
    whole = _integer(plain)
    if whole is not None:
        return whole
    return _number(plain, text) if _FLOAT.fullmatch(plain) else text


def _integer(text: str) -> int | None:
    found = _INTEGER.fullmatch(text)
    if not found:
        return None
    sign, *digits = found.groups()
    base, value = next((base, each) for base, each in zip((16, 2, 8, 10), digits, strict=True) if each)
    number = -int(value, base) if sign == "-" else int(value, base)
    # Unsigned numbers have no sign.
    most = 2**63 - 1 if sign else _UINT64_MAX
    return number if _INT64_MIN <= number <= most else None


def _number(plain: str, text: str) -> int | float | str:
    """Returns the number as it is in JSON, where 1e3 is 1000; the text, if it is too large for a float."""
    value = float(plain)
    if math.isinf(value):
        return text
    if value.is_integer() and abs(value) < _PLAIN_FLOAT_MAX:
        return int(Decimal(repr(value)))
    return value


_Loader.add_constructor(_GO_SCALAR, lambda loader, node: scalar(node.value))
