"""Writes dashboard.json from panels.yaml, and prometheus-operator.yaml from alerts.yaml.

python deploy/observability/generate.py                                 # after a change of these files
python deploy/observability/generate.py --output DIR --docs-url URL     # a copy that links to your docs
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
DOCS_URL = "https://bootbridge.example/docs"
SERVER = "konnectivity_network_proxy_server_"
AGENT = "konnectivity_network_proxy_agent_"
OURS = f'{{__name__=~"{SERVER}ready_backend_connections|{AGENT}known_server_count"'
SELECTED = '{job=~"$job", instance=~"$instance"'
WIDTH = 24  # of Grafana's grid
PANEL_WIDTH, PANEL_HEIGHT = 8, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def expression(text: str) -> str:
    """Returns the expression with metric names and labels in full."""
    text = text.replace("{}", SELECTED + "}").replace("{, ", SELECTED + ", ")
    return text.replace("$server_", SERVER).replace("$agent_", AGENT)


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in yaml.safe_load((HERE / "panels.yaml").read_text()).items():
        panels.append(_row(title, len(panels) + 1, y))
        y += 1
        x = height = 0
        for panel in row:
            width = panel.get("width", PANEL_WIDTH)
            if x + width > WIDTH:
                x, y, height = 0, y + height, 0
            at = {"x": x, "y": y, "w": width, "h": panel.get("height", PANEL_HEIGHT)}
            panels.append(_panel(panel, len(panels) + 1, at))
            x, height = x + width, max(height, at["h"])
        y += height
    return {
        "uid": "bootbridge",
        "title": "Bootbridge: tunnel",
        "description": "proxy-server and proxy-agent, ours or Konnectivity's.",
        "tags": ["bootbridge", "konnectivity"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    def labels(name: str, query: str) -> dict[str, Any]:
        return {
            "name": name,
            "label": name,
            "type": "query",
            "datasource": DATASOURCE,
            "definition": query,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        }

    datasource = {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus"}
    return [
        datasource,
        labels("job", f"label_values({OURS}}}, job)"),
        labels("instance", f'label_values({OURS}, job=~"$job"}}, instance)'),
    ]


def _row(title: str, number: int, y: int) -> dict[str, Any]:
    at = {"x": 0, "y": y, "w": WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": at, "panels": []}


def _panel(panel: dict[str, Any], number: int, at: dict[str, int]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    thresholds = panel.get("thresholds", {"green": None})
    if kind == "stat":
        custom: dict[str, Any] = {}
        options: dict[str, Any] = {
            "colorMode": "value",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    else:
        stacking = {"mode": "normal" if panel.get("stacked") else "none"}
        custom = {"fillOpacity": 10, "showPoints": "never", "stacking": stacking}
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel["description"],
        "datasource": DATASOURCE,
        "gridPos": at,
        "fieldConfig": {
            "defaults": {
                "unit": panel["unit"],
                "min": panel.get("min", 0),
                "custom": custom,
                "thresholds": {
                    "mode": "absolute",
                    "steps": [{"color": color, "value": value} for color, value in thresholds.items()],
                },
            },
            "overrides": [],
        },
        "options": options,
        "targets": [
            {"refId": letter, "legendFormat": legend, "expr": expression(text), "datasource": DATASOURCE}
            for letter, target in zip("ABCDEFGH", panel["targets"], strict=False)
            for legend, text in target.items()
        ],
    }


def operator_objects(rules: str) -> str:
    """Returns a PodMonitor for the agents of `bootbridge up`, and a PrometheusRule."""
    monitor = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "bootbridge-agents", "namespace": "monitoring"},
        "spec": {
            "namespaceSelector": {"any": True},
            "selector": {"matchLabels": {"app": "konnectivity-agent"}},
            "podMetricsEndpoints": [{"targetPort": 2042, "path": "/metrics", "interval": "15s"}],
        },
    }
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "bootbridge", "namespace": "monitoring"},
        "spec": yaml.safe_load(rules),
    }
    head = "# Written by generate.py from alerts.yaml.\n"
    return head + yaml.safe_dump_all([monitor, rule], sort_keys=False, width=120)


def files(docs_url: str = DOCS_URL) -> dict[str, str]:
    """Returns the generated files by name."""
    rules = (HERE / "alerts.yaml").read_text().replace(f"{DOCS_URL}/", f"{docs_url.rstrip('/')}/")
    return {
        "alerts.yaml": rules,
        "dashboard.json": json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n",
        "prometheus-operator.yaml": operator_objects(rules),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--output", type=Path, default=HERE, metavar="DIR", help="default: beside this script"
    )
    parser.add_argument(
        "--docs-url", default=DOCS_URL, metavar="URL", help="where you publish the folder docs/"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, text in files(arguments.docs_url).items():
        (arguments.output / name).write_text(text)


if __name__ == "__main__":
    main()
