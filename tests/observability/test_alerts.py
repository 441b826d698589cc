"""The Prometheus rules: valid, tested case by case, explained in docs/on-call.md, same for the operator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.observability_files import FOLDER, generator, rules
from tests.support.process_program import ROOT
from tests.support.prometheus import promtool

CASES = Path(__file__).parent / "alerts_test.yaml"
ON_CALL = (ROOT / "docs" / "on-call.md").read_text()
SEVERITIES = {"critical", "warning", "info"}


def test_promtool_accepts_the_rules() -> None:
    checked = promtool("check", "rules", "--lint-fatal", str(FOLDER / "alerts.yaml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_case_has_the_alerts_that_it_expects() -> None:
    """Labels, annotations and times, as Prometheus' own evaluation gives them."""
    tested = promtool("test", "rules", str(CASES))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_rule_that_does_not_fire_is_noticed(tmp_path: Path) -> None:
    """The check above can fail: without agents an alert was expected, and none comes."""
    text = (FOLDER / "alerts.yaml").read_text()
    (tmp_path / "alerts.yaml").write_text(
        text.replace("backend_connections == 0", "backend_connections == 7")
    )
    cases = yaml.safe_load(CASES.read_text())
    cases |= {"rule_files": ["alerts.yaml"], "tests": cases["tests"][:1]}
    (tmp_path / "alerts_test.yaml").write_text(yaml.safe_dump(cases))
    tested = promtool("test", "rules", str(tmp_path / "alerts_test.yaml"))
    assert tested.returncode != 0
    assert "BootbridgeNoAgent" in tested.stdout + tested.stderr


def test_every_alert_is_tested_when_it_fires_and_when_it_does_not() -> None:
    fires, silent = set(), set()
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for check in case["alert_rule_test"]:
            (fires if check["exp_alerts"] else silent).add(check["alertname"])
    names = {rule["alert"] for rule in rules()}
    assert fires == names
    assert silent == names


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_every_alert_has_a_severity_and_a_section_for_the_one_on_call(rule: dict[str, Any]) -> None:
    """The link leads to a heading of docs/on-call.md that has the three parts."""
    assert rule["labels"]["severity"] in SEVERITIES
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page.endswith("/docs/on-call.md")
    section = re.search(rf"^### {rule['alert']}\n(.*?)(?=^##)", ON_CALL, re.MULTILINE | re.DOTALL)
    assert section, f"docs/on-call.md has no section {rule['alert']}"
    assert anchor == rule["alert"].lower()
    for part in ("**Meaning**", "**Look at**", "**do**"):
        assert part.lower() in section[1].lower()


def test_the_documentation_has_no_section_of_an_alert_that_does_not_exist() -> None:
    assert set(re.findall(r"^### (Bootbridge\w+)$", ON_CALL, re.MULTILINE)) == {
        rule["alert"] for rule in rules()
    }


def test_the_generated_files_are_up_to_date() -> None:
    """After a change: python deploy/observability/generate.py"""
    for name, text in generator().files().items():
        assert (FOLDER / name).read_text() == text, name


def test_a_copy_links_to_the_operators_own_documentation() -> None:
    files = generator().files("https://git.example/docs/")
    for name in ("alerts.yaml", "prometheus-operator.yaml"):
        links = re.findall(r"https://[^\s'#]+", files[name])
        assert set(links) == {"https://git.example/docs/on-call.md"}


def test_the_operators_rules_are_the_same() -> None:
    monitor, rule = yaml.safe_load_all((FOLDER / "prometheus-operator.yaml").read_text())
    assert rule["kind"] == "PrometheusRule"
    assert [each for group in rule["spec"]["groups"] for each in group["rules"]] == rules()
    assert monitor["kind"] == "PodMonitor"


def test_the_pod_monitor_selects_the_agents_that_up_installs() -> None:
    """Label and port are those of the rendered DaemonSet."""
    from bootbridge.bootstrap.plan.plan import Plan

    monitor, _ = yaml.safe_load_all((FOLDER / "prometheus-operator.yaml").read_text())
    plan = Plan()
    selected = monitor["spec"]["selector"]["matchLabels"]
    assert selected.items() <= plan.agent_labels.items()
    assert monitor["spec"]["podMetricsEndpoints"][0]["targetPort"] == plan.ports.agent_health
