"""What a firewall rule is, whatever the cloud: a name, a port, who may come, and to whom.

A platform turns rules into actions: each one command of that platform's own CLI, with the
body that its API takes. Ids that only the cloud knows are looked up when an action runs,
and stand as `@name@` in command and body until then.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bootbridge.bootstrap.plan.plan import IPNetwork, Plan
from bootbridge.errors import OperatorError

PURPOSE = "bootstrap-konnectivity"
NAME_MAX = 63  # the strictest of the clouds: GCP and IBM Cloud
DESCRIPTION = "Bootbridge: nodes reach the bootstrap node, for the time of the bootstrap"
PLACEHOLDER = re.compile(r"@([a-z_]+)@")


@dataclass(frozen=True)
class Rule:
    """Who may connect to what. `sources` are groups or tags of nodes, or their networks, never the world."""

    name: str
    port: int
    sources: tuple[str, ...]
    target: str
    removal: str
    protocol: str = "tcp"


class Then(StrEnum):
    """What a lookup's answer means for the action it belongs to."""

    GO_ON = "go on"
    NOTHING_TO_DO = "nothing to do"
    FAIL = "fail"


@dataclass(frozen=True)
class Lookup:
    """A question to the cloud, answered in JSON; the answer replaces `@variable@`.

    `items` and `give` are paths such as `Reservations[].Instances[]` and `VpcId`; of the items
    only those count that match all of `where` and none of `unless`.
    """

    variable: str
    seeks: str
    argv: tuple[str, ...]
    items: str
    give: str
    where: tuple[tuple[str, str | int], ...] = ()
    unless: tuple[tuple[str, str | int], ...] = ()
    last_part: bool = False  # of an answer such as https://…/zones/europe-west3-a
    many: bool = False
    none: Then = Then.FAIL
    some: Then = Then.GO_ON
    gone: tuple[str, ...] = ()  # what the CLI says when even the place to look in is gone


@dataclass(frozen=True)
class FirewallAction:
    """One step: a command and the API request that it stands for."""

    rule: str
    does: str
    argv: tuple[str, ...]
    api: str
    body: Mapping[str, Any] | None = None
    lookups: tuple[Lookup, ...] = ()
    already: tuple[str, ...] = ()  # what the CLI says when the step was done before

    @property
    def program(self) -> str:
        return self.argv[0]


def rule_name(plan: Plan, suffix: str = "") -> str:
    """THE name: creation and removal both take it from here, so they cannot disagree."""
    if not plan.infra_id:
        hint = "give infraID from the installer's metadata.json: the rule is named after it"
        text = f"the firewall of {plan.platform} needs the cluster's name in the cloud"
        raise OperatorError(text, subject="--infra-id", hint=hint)
    name = "-".join(filter(None, (plan.infra_id, PURPOSE, suffix)))
    if len(name) > NAME_MAX or not name[0].isalpha():
        room = NAME_MAX - len(name) + len(plan.infra_id)
        hint = f"clouds want names that start with a letter, which leaves at most {room} characters for it"
        raise OperatorError(f"{name!r} is no name for a rule", subject="--infra-id", hint=hint)
    return name


def bootstrap_name(plan: Plan) -> str:
    """What the installer calls the bootstrap machine in every cloud."""
    return f"{plan.infra_id}-bootstrap"


def source_networks(plan: Plan) -> tuple[IPNetwork, ...]:
    """The machine networks, which hold all nodes; refused if together they are the whole world."""
    networks = plan.networks.machine
    for version in (4, 6):
        family = [network for network in networks if network.version == version]
        for merged in ipaddress.collapse_addresses(family):  # type: ignore[type-var]
            if merged.prefixlen == 0:
                hint = "name the networks in which the nodes are (--machine-network)"
                text = f"{merged} is the whole world, and the port is not for the world"
                raise OperatorError(text, subject="networking.machineNetwork", hint=hint)
    return tuple(dict.fromkeys(networks))
