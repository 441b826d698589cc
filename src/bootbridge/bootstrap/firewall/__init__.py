"""Opens the agents' port on the bootstrap node to the nodes, and to nothing else, and closes it again.

In the order in which data meets them: `model` (rule, action, lookup), `installer_names` (the installer's
groups per release), one module per cloud, `providers` (which module serves which platform), `runner` (runs
actions through the cloud's CLI), `rule_record` (where a rule was created), `files` and `shell_script` (as
files), `manual_instructions` (where the operator manages the firewall), `probe` (tests the port from a
node). Runs in `bootbridge firewall`, `up --firewall`, `down`, `render` and `doctor --from-node`.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.files import render_files
from bootbridge.bootstrap.firewall.model import FirewallAction, Rule, rule_name
from bootbridge.bootstrap.firewall.providers import create, is_managed, remove, rules, unmanaged_reason
from bootbridge.bootstrap.firewall.rule_record import completed
from bootbridge.bootstrap.firewall.runner import ActionOutcome, ActionResult, run

__all__ = [
    "ActionOutcome",
    "ActionResult",
    "FirewallAction",
    "Rule",
    "completed",
    "create",
    "is_managed",
    "remove",
    "render_files",
    "rule_name",
    "rules",
    "run",
    "unmanaged_reason",
]
