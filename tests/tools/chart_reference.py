"""Writes the table of the chart's values into its README, from the comments in values.yaml.

python -m tests.tools.chart_reference --write
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.tools.generated_section import replaced

CHART = Path(__file__).parents[2] / "deploy/helm/bootbridge"
DOCUMENT = CHART / "README.md"
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"
_INDENT = 2


def schema_paths() -> list[str]:
    """Returns the paths of all values in values.schema.json: `servers.hosts`. A value of free form is one."""
    return list(_schema_paths(json.loads((CHART / "values.schema.json").read_text())))


def _schema_paths(schema: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, below in schema["properties"].items():
        if "properties" in below:
            yield from _schema_paths(below, f"{above}{name}.")
        else:
            yield above + name


def comments() -> dict[str, str]:
    """Returns the comment above each key of values.yaml, by path; the first comment is the file's own."""
    found: dict[str, str] = {}
    path: list[str] = []
    pending: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        text = line.strip()
        if text.startswith("# "):
            pending.append(text.removeprefix("# "))
        elif not text:
            pending = []
        elif not text.startswith("- "):
            path[(len(line) - len(line.lstrip())) // _INDENT :] = [text.partition(":")[0]]
            if pending:
                found[".".join(path)] = " ".join(pending)
            pending = []
    return found


def table() -> str:
    """Returns the table: value, default, meaning."""
    defaults, meanings = yaml.safe_load((CHART / "values.yaml").read_text()), comments()
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for path in schema_paths():
        default: Any = defaults
        for key in path.split("."):
            default = default[key]
        rows.append(f"| `{path}` | `{json.dumps(default)}` | {meanings[path].replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def updated(text: str) -> str:
    """Returns the README with the table of values.yaml."""
    return replaced(text, BEGIN, END, table())


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    DOCUMENT.write_text(updated(DOCUMENT.read_text()))
