"""Keeps where a rule was created: a plan record with what the cloud answered.

The installer consumes install-config.yaml, so its region and project are not available any more when the rule
is to be removed. A CLI's default may have changed, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace

from bootbridge.bootstrap.firewall.runner import ActionResult
from bootbridge.bootstrap.plan.cloud import CloudSettings
from bootbridge.bootstrap.plan.plan import Plan

_SETTINGS = [field.name for field in fields(CloudSettings)]


def file_name(infra_id: str) -> str:
    """Returns the name of the record that `firewall create --apply` writes by default."""
    return f"{infra_id}-firewall.json"


def completed(plan: Plan, results: Iterable[ActionResult]) -> Plan:
    """Returns the plan with the region, project and so on that lookups found, where it has none."""
    found = {
        name: values[0]
        for result in results
        for name, values in result.found.items()
        if name in _SETTINGS and len(values) == 1 and not getattr(plan.cloud, name)
    }
    return replace(plan, cloud=replace(plan.cloud, **found))
