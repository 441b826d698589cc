"""YAML for people and Go programs: block style, no aliases, ambiguous texts quoted."""

from __future__ import annotations

import re
from typing import Any

import yaml

# All exceptions that PyYAML raises on invalid input.
YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
# PyYAML leaves these bare, but Go's YAML reads them as booleans or numbers.
_AMBIGUOUS_IN_GO = re.compile(
    r"[yYnN]|[-+]?0o[0-7_]+|[-+]?0b[01_]+|[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\d+(:[0-5]?\d)+(\.\d*)?"
)
_UNBROKEN = 2**31 - 1  # columns: a folded flag is hard to read and to search for


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # lists are indented below their key, as kubectl prints them


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    if "\n" in value:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|")
    style = '"' if _AMBIGUOUS_IN_GO.fullmatch(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(document: object, *, sort_keys: bool = False) -> bytes:
    """Returns one document with a final newline; keys keep their order unless `sort_keys`."""
    text = yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=sort_keys,
        default_flow_style=False,
        allow_unicode=True,
        width=_UNBROKEN,
    )
    return text.encode()
