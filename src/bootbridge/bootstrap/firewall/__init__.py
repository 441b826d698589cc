"""The firewall in front of the bootstrap node: let the nodes in, never the world, and close it again.

`create(plan)` and `removal(plan)` give actions, `run` runs them through the cloud's own CLI,
`render_files(plan)` writes them down, `probe` tries the port from a node's side.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.files import render_files
from bootbridge.bootstrap.firewall.model import FirewallAction, Rule, rule_name
from bootbridge.bootstrap.firewall.providers import create, is_managed, rules
from bootbridge.bootstrap.firewall.providers import remove as removal
from bootbridge.bootstrap.firewall.runner import ActionOutcome, ActionResult, run

remove = removal

__all__ = [
    "ActionOutcome",
    "ActionResult",
    "FirewallAction",
    "Rule",
    "create",
    "is_managed",
    "removal",
    "remove",
    "render_files",
    "rule_name",
    "rules",
    "run",
]
