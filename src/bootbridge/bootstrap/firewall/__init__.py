"""The firewall in front of the bootstrap node: let the nodes in, never the world, and close it again.

`create(plan)` and `removal(plan)` give actions, `run` runs them through the cloud's own CLI,
`artefacts(plan)` writes them down, `probe` tries the port from a node's side.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.asset_files import artefacts
from bootbridge.bootstrap.firewall.model import Action, Rule, rule_name
from bootbridge.bootstrap.firewall.platforms import create, is_managed, rules
from bootbridge.bootstrap.firewall.platforms import remove as removal
from bootbridge.bootstrap.firewall.running import Outcome, Result, run

remove = removal

__all__ = [
    "Action",
    "Outcome",
    "Result",
    "Rule",
    "artefacts",
    "create",
    "is_managed",
    "removal",
    "remove",
    "rule_name",
    "rules",
    "run",
]
