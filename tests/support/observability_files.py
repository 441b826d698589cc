"""The files of deploy/observability, and the metrics and labels that their expressions use."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import yaml

from tests.support.process_program import ROOT

FOLDER = ROOT / "deploy" / "observability"
# What Prometheus itself adds to every sample of a target, and its own series.
TARGET_LABELS = {"job", "instance"}
OWN_SERIES = {"up", "ALERTS"}
_SELECTOR = re.compile(
    r"\b(konnectivity_\w+|process_\w+|(?<![\w$.])up\b|ALERTS)(?:\{((?:[^\"}]|\"[^\"]*\")*)\})?"
)
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
_LEGEND = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")
_VARIABLES = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*"}


@dataclass(frozen=True)
class Use:
    """An expression, and the texts that show its labels."""

    where: str
    expression: str
    texts: tuple[str, ...]

    @property
    def selectors(self) -> list[tuple[str, dict[str, tuple[str, str]]]]:
        """Returns each metric with its matchers: label → operator, value."""
        return [
            (name, {label: (operator, value) for label, operator, value in _MATCHER.findall(matchers or "")})
            for name, matchers in _SELECTOR.findall(self.expression)
        ]

    @property
    def shown_labels(self) -> set[str]:
        """Returns the labels that the expression groups by, or that a legend or annotation shows."""
        grouped = {
            label.strip() for group in _GROUPING.findall(self.expression) for label in group.split(",")
        }
        shown = {label for text in self.texts for label in _LEGEND.findall(text)}
        return (grouped | shown) - TARGET_LABELS


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return found


def panels() -> list[dict[str, Any]]:
    """Returns the panels without the titles of rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def without_variables(expression: str) -> str:
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def uses() -> Iterator[Use]:
    for rule in rules():
        texts = tuple(text for text in rule["annotations"].values() if isinstance(text, str))
        yield Use(rule["alert"], rule["expr"], texts)
    for panel in panels():
        for target in panel["targets"]:
            expression = without_variables(target["expr"])
            yield Use(panel["title"], expression, (target["legendFormat"],))


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
