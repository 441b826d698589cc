"""Debian's promtool and Prometheus: check rules, and run a server that scrapes the programs of a test."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import yaml

from tests.support.not_run import not_run
from tests.support.process_program import Program, free_port, until
from tests.support.tunnel_programs import Web

# Fast, so that tests wait for state and not for intervals.
INTERVAL = "200ms"


def find(name: str) -> str:
    path = shutil.which(name)
    return path or not_run(f"{name}: program not found (apt-get install prometheus)")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def expression_problems(expressions: list[str], folder: Path) -> str:
    """Returns what promtool rejects in these expressions; empty if it accepts all."""
    rules = [{"record": f"expression:{number}", "expr": text} for number, text in enumerate(expressions)]
    path = folder / "expressions.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "expressions", "rules": rules}]}))
    checked = promtool("check", "rules", str(path))
    return "" if checked.returncode == 0 else checked.stdout + checked.stderr


class Prometheus(Program):
    """A Prometheus that scrapes `jobs` (name → targets) and evaluates `rules`."""

    def __init__(self, folder: Path, jobs: dict[str, list[str]], rules: dict[str, Any]) -> None:
        folder.mkdir()
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        configuration = {
            "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                {"job_name": name, "scrape_timeout": INTERVAL, "static_configs": [{"targets": targets}]}
                for name, targets in jobs.items()
            ],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        self.web = Web(free_port())
        flags = {
            "config.file": folder / "prometheus.yaml",
            "storage.tsdb.path": folder / "data",
            "web.listen-address": f"127.0.0.1:{self.web.port}",
        }
        super().__init__(find("prometheus"), flags, folder)

    def wait_until_ready(self) -> None:
        until(lambda: self.web.get("/-/ready")[0] == 200 or not self.alive, "Prometheus is ready")
        assert self.alive, self.log[-2000:]

    def alerts(self) -> dict[tuple[str, str], str]:
        """Returns the state of each alert that is pending or firing, by name and job."""
        found = self._api("/api/v1/alerts")["alerts"]
        return {
            (alert["labels"]["alertname"], alert["labels"].get("job", "")): alert["state"] for alert in found
        }

    def rule_problems(self) -> list[str]:
        groups = self._api("/api/v1/rules")["groups"]
        return [
            f"{rule['name']}: {rule.get('lastError', rule['health'])}"
            for group in groups
            for rule in group["rules"]
            if rule["health"] != "ok"
        ]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._api(
            "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        )["result"]
        return found

    def _api(self, path: str) -> dict[str, Any]:
        status, text = self.web.get(path)
        answer = json.loads(text) if text else {}
        assert (status, answer.get("status")) == (200, "success"), (path, status, text)
        data: dict[str, Any] = answer["data"]
        return data
