"""docs/support.md lists the APIs that a release of Kubernetes must have."""

from __future__ import annotations

import re
from pathlib import Path

from bootbridge.kube import kinds
from bootbridge.kube.kinds import Kind

ROOT = Path(__file__).parents[2]
# Of the Prometheus operator, and only with metrics.serviceMonitor.enabled.
OPTIONAL = {"monitoring.coreos.com/v1"}


def used() -> set[str]:
    """API groups with versions, of the objects in our code and in the chart."""
    roots = {each.root for each in vars(kinds).values() if isinstance(each, Kind)}
    groups = {root.removeprefix("/apis/") for root in roots if root.startswith("/apis/")}
    for template in (ROOT / "deploy/helm/bootbridge/templates").glob("*.yaml"):
        groups |= set(re.findall(r"apiVersion: ([a-z0-9.-]+/v\w+)$", template.read_text(), re.MULTILINE))
    return groups - OPTIONAL


def test_the_support_page_lists_every_api_that_is_used() -> None:
    [row] = [
        line for line in (ROOT / "docs/support.md").read_text().splitlines() if "only stable APIs" in line
    ]
    assert used() - set(re.findall(r"[a-z0-9.]+/v\w+", row)) == set()
    assert all(re.fullmatch(r".+/v\d+", group) for group in used()), "stable versions only"
