"""Renders the firewall as files: actions as JSON and scripts, or instructions for the operator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bootbridge.bootstrap.firewall import manual_instructions, providers, shell_script
from bootbridge.bootstrap.firewall.model import FirewallAction, Lookup
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.files import Asset, Tree

_INFRA_ID_UNKNOWN = """\
The nodes must reach TCP {plan.ports.agent} on the bootstrap node. The rule on {plan.platform}
is named after the cluster's infrastructure ID, which was not known when this file was written.
Use infraID from metadata.json after the installer has written it:

  bootbridge firewall create --platform {plan.platform} --infra-id INFRA_ID --apply

After the bootstrap, run the same command with remove instead of create. Give the same --machine-network,
--node-ip and --agent-port, or --install-config, as for this directory.
"""


def render_files(plan: Plan) -> Tree:
    """Returns relative paths: firewall/{create,remove}.{json,sh}, or firewall/open-port.{txt,json}.

    Without an infrastructure ID, a cloud's rule has no name. The files then explain how to create it later.
    """
    if not providers.is_managed(plan):
        text = manual_instructions.as_text(plan, providers.unmanaged_reason(plan))
        return _instructions(text, manual_instructions.as_data(plan))
    if not plan.infra_id:
        return _instructions(
            _INFRA_ID_UNKNOWN.format(plan=plan),
            manual_instructions.as_data(plan) | {"managedBy": "bootbridge"},
        )
    tree: dict[str, Asset] = {}
    for direction in ("create", "remove"):
        tree[f"firewall/{direction}.json"] = Asset((as_json(plan, direction) + "\n").encode())
        tree[f"firewall/{direction}.sh"] = Asset(as_script(plan, direction).encode(), 0o755)
    return tree


def _instructions(text: str, data: dict[str, Any]) -> Tree:
    return {
        "firewall/open-port.json": Asset((json.dumps(data, indent=2) + "\n").encode()),
        "firewall/open-port.txt": Asset(text.encode()),
    }


def actions(plan: Plan, direction: str) -> list[FirewallAction]:
    return providers.create(plan) if direction == "create" else providers.remove(plan)


def as_script(plan: Plan, direction: str) -> str:
    creating = direction == "create"
    what = "Opens" if creating else "Closes"
    node = f"the bootstrap node of {plan.infra_id} ({plan.platform})"
    title = f"{what} TCP {plan.ports.agent} on {node} to the nodes."
    return shell_script.render(title, actions(plan, direction), keep_going=not creating)


def as_json(plan: Plan, direction: str) -> str:
    return json.dumps(as_data(plan, direction), indent=2)


def as_data(plan: Plan, direction: str) -> dict[str, Any]:
    """Returns the rules, and for `create` and `remove` the actions."""
    if not providers.is_managed(plan):
        return manual_instructions.as_data(plan)
    data: dict[str, Any] = {
        "platform": plan.platform,
        "managedBy": "bootbridge",
        "rules": [asdict(rule) for rule in providers.rules(plan)],
    }
    if direction != "show":
        data |= {"direction": direction, "actions": [_action(action) for action in actions(plan, direction)]}
    return data


def _action(action: FirewallAction) -> dict[str, Any]:
    return {
        "rule": action.rule,
        "description": action.description,
        "api": action.api,
        "body": action.body,
        "command": list(action.argv),
        "alreadyDoneErrors": list(action.already_done),
        "lookups": _lookups(action.lookups),
    }


def _lookups(lookups: Sequence[Lookup]) -> list[dict[str, Any]]:
    return [
        {
            "placeholder": f"@{lookup.variable}@",
            "description": lookup.description,
            "command": list(lookup.argv),
            "items": lookup.items,
            "where": dict(lookup.where),
            "excluding": dict(lookup.excluding),
            "select": lookup.select,
            "basename": lookup.basename,
            "after": lookup.after,
            "presence": lookup.presence,
            "ifMissing": lookup.if_missing,
        }
        for lookup in lookups
    ]
