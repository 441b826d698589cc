"""Opens the agents' port on the bootstrap node to the nodes, and to nothing else, and closes it again.

In the order in which data meets them: `model` (rule, action, lookup), one module per cloud, `providers`
(which module serves which platform), `runner` (runs actions through the cloud's CLI), `files` and
`shell_script` (actions as files), `manual_instructions` (where the operator manages the firewall), `probe`
(tests the port from a node). Runs in `bootbridge firewall`, `up --firewall`, `down`, `render` and
`doctor --from-node`.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.files import render_files
from bootbridge.bootstrap.firewall.model import FirewallAction, Rule, rule_name
from bootbridge.bootstrap.firewall.providers import create, is_managed, remove, rules
from bootbridge.bootstrap.firewall.runner import ActionOutcome, ActionResult, run

__all__ = [
    "ActionOutcome",
    "ActionResult",
    "FirewallAction",
    "Rule",
    "create",
    "is_managed",
    "remove",
    "render_files",
    "rule_name",
    "rules",
    "run",
]
