"""The firewall as files: the actions as JSON and as scripts, or a page of what to open by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bootbridge.bootstrap.firewall import manual_instructions, providers, shell_script
from bootbridge.bootstrap.firewall.model import FirewallAction, Lookup
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.files import Asset, Tree

_LATER = """\
The nodes must reach TCP {plan.ports.agent} on the bootstrap node. The rule for {plan.platform}
is named after the cluster's infrastructure id, which was not known when this was written. Once the
installer has written metadata.json, take infraID from it:

  bootbridge firewall create --platform {plan.platform} --infra-id INFRA_ID --apply

and after the bootstrap the same with remove instead of create. Say --machine-network, --node-ip and
--agent-port, or --install-config, as for this directory.
"""


def render_files(plan: Plan) -> Tree:
    """Relative paths: firewall/{create,remove}.{json,sh}, or firewall/open-port.{txt,json}.

    Before the installer has made the infrastructure id, a cloud's rule has no name yet: the page says
    what is needed to get it.
    """
    if not providers.is_managed(plan):
        return _page(manual_instructions.as_text(plan), manual_instructions.as_data(plan))
    if not plan.infra_id:
        return _page(
            _LATER.format(plan=plan), manual_instructions.as_data(plan) | {"managedBy": "bootbridge"}
        )
    tree: dict[str, Asset] = {}
    for direction in ("create", "remove"):
        tree[f"firewall/{direction}.json"] = Asset((as_json(plan, direction) + "\n").encode())
        tree[f"firewall/{direction}.sh"] = Asset(as_script(plan, direction).encode(), 0o755)
    return tree


def _page(words: str, data: dict[str, Any]) -> Tree:
    text = json.dumps(data, indent=2) + "\n"
    return {
        "firewall/open-port.json": Asset(text.encode()),
        "firewall/open-port.txt": Asset(words.encode()),
    }


def actions(plan: Plan, direction: str) -> list[FirewallAction]:
    return providers.create(plan) if direction == "create" else providers.remove(plan)


def as_script(plan: Plan, direction: str) -> str:
    creating = direction == "create"
    what = "Lets the nodes reach" if creating else "Takes away the way to"
    title = f"{what} TCP {plan.ports.agent} on the bootstrap node of {plan.infra_id} ({plan.platform})."
    return shell_script.render(title, actions(plan, direction), keep_going=not creating)


def as_json(plan: Plan, direction: str) -> str:
    return json.dumps(as_data(plan, direction), indent=2)


def as_data(plan: Plan, direction: str) -> dict[str, Any]:
    """The rules, and for `create` and `remove` the actions too."""
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
        "does": action.does,
        "api": action.api,
        "body": action.body,
        "command": list(action.argv),
        "alreadyDoneIfItSays": list(action.already),
        "lookups": _lookups(action.lookups),
    }


def _lookups(lookups: Sequence[Lookup]) -> list[dict[str, Any]]:
    return [
        {
            "placeholder": f"@{lookup.variable}@",
            "seeks": lookup.seeks,
            "command": list(lookup.argv),
            "items": lookup.items,
            "where": dict(lookup.where),
            "unless": dict(lookup.unless),
            "give": lookup.give,
            "ifNone": lookup.none,
            "ifSome": lookup.some,
        }
        for lookup in lookups
    ]
