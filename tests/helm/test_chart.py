"""The chart's files agree with each other, with the version and with the programs' flags; needs no helm."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from bootbridge import __version__
from bootbridge.cli.agent_flags import FLAGS
from tests.support.process_program import PEERS
from tests.tools import chart_reference
from tests.tools.chart_reference import CHART

TEMPLATES = sorted((CHART / "templates").iterdir())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
# Rendered for our agent only.
OURS_ALONE = {
    "log-format",
    "drain-timeout",
    "allow-destinations",
    "deny-destinations",
    "lease-label-selector",
}


def agent_flags() -> set[str]:
    """Returns the names of the agent's flags that the chart renders."""
    arguments = (CHART / "templates/_helpers.tpl").read_text().partition('"bootbridge.args"')[2]
    return set(re.findall(r"--([a-z][a-z-]*)", arguments.partition('{{- define "')[0]))


def test_the_version_is_that_of_the_programs() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_readme_lists_every_value() -> None:
    """`python -m tests.tools.chart_reference --write` makes the table from the comments."""
    text = chart_reference.DOCUMENT.read_text()
    assert chart_reference.updated(text) == text


def test_the_schema_has_the_values_of_the_file() -> None:
    """The same names, and a comment for each."""
    paths = chart_reference.schema_paths()
    assert set(paths) == set(value_paths(VALUES, SCHEMA))
    assert sorted(set(paths) - set(chart_reference.comments())) == []


def value_paths(values: Mapping[str, Any], schema: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in values.items():
        below = schema.get("properties", {}).get(key, {})
        if isinstance(value, Mapping) and "properties" in below:
            yield from value_paths(value, below, f"{above}{key}.")
        else:
            yield above + key


def test_the_schema_refuses_unknown_names_everywhere() -> None:
    """So that a misspelt value is not ignored."""

    def open_objects(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
        if "properties" in schema:
            if schema.get("additionalProperties") is not False:
                yield path
            for name, below in schema["properties"].items():
                yield from open_objects(below, f"{path}.{name}")

    assert list(open_objects(SCHEMA)) == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_use_only_known_values(template: Any) -> None:
    """A misspelt value would be empty."""
    known = chart_reference.schema_paths()
    for path in re.findall(r"(?:\.Values|\$values)\.([A-Za-z.]+)", template.read_text()):
        assert any(f"{each}.".startswith(f"{path}.") for each in known), path


def test_every_flag_is_one_of_our_agent() -> None:
    assert agent_flags() <= {flag.name for flag in FLAGS}
    assert agent_flags() >= OURS_ALONE


@pytest.mark.interop
def test_every_other_flag_is_one_of_the_go_agent() -> None:
    """By its own --help."""

    page = subprocess.run([PEERS / "proxy-agent", "--help"], capture_output=True, text=True, timeout=20)
    known = set(re.findall(r"--([a-z][a-z-]*)", page.stdout))
    assert agent_flags() - known == OURS_ALONE
