"""The Grafana dashboard: complete panels, expressions that Prometheus parses, no overlap."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.support.observability_files import dashboard, panels, uses, without_variables
from tests.support.prometheus import expression_problems

GRID_WIDTH = 24


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_every_panel_is_complete(panel: dict[str, Any]) -> None:
    """Title, unit, description, a legend for each query, and the chosen data source."""
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["expr"]
        assert target["legendFormat"]
        assert target["datasource"]["uid"] == "${datasource}"


def test_titles_and_ids_are_unique() -> None:
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles)
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_panels_do_not_overlap() -> None:
    for one, other in itertools.combinations([panel["gridPos"] for panel in dashboard()["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
        assert max(one["x"] + one["w"], other["x"] + other["w"]) <= GRID_WIDTH


def test_the_variables_choose_data_source_job_and_instance() -> None:
    variables = {each["name"]: each for each in dashboard()["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance"]
    for name in ("job", "instance"):
        assert variables[name]["query"]["query"].endswith(f", {name})")
        assert variables[name]["multi"]


def test_every_query_selects_by_the_variables() -> None:
    """Alerts are the exception: their labels are the rules' own."""
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"]
            assert text.count('{job=~"$job", instance=~"$instance"') or "ALERTS{" in text, text
            assert "$" not in without_variables(text), text


def test_prometheus_parses_every_expression(tmp_path: Path) -> None:
    assert expression_problems([use.expression for use in uses()], tmp_path) == ""


def test_an_expression_that_prometheus_does_not_parse_is_noticed(tmp_path: Path) -> None:
    """The check above can fail."""
    assert "parse error" in expression_problems(["sum(rate(up[5m])"], tmp_path)
