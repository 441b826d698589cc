"""Text that is not a mapping in YAML, with the error of each."""

from __future__ import annotations

INVALID_TEXT = [
    ("", "empty document (must be a mapping)"),
    ("text", "invalid type: string (must be a mapping)"),
    ("[1, 2]", "invalid type: list (must be a mapping)"),
    ("a: b: c", "line 1, column 5: invalid YAML: mapping values are not allowed here"),
    ("a: 1\n  b: 2", "line 2, column 4: invalid YAML: mapping values are not allowed here"),
    ("a: 1\na: 2", "line 2, column 1: duplicate key 'a'"),
    ("\x00", "invalid YAML: special characters are not allowed"),
]
