"""Defines a firewall rule, the actions that create or remove it, and the lookups that an action needs.

A provider module turns a plan into actions. Each action is one command of the cloud's CLI, with the body of
the API request that the command sends. An ID that only the cloud knows is written `@name@` in both, until a
lookup replaces it when the action runs.
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
NAME_MAX = 63  # the lowest limit of all clouds: GCP and IBM Cloud
DESCRIPTION = "Bootbridge: nodes reach the bootstrap node during the bootstrap"
PLACEHOLDER = re.compile(r"@([a-z_]+)@")
Condition = tuple[str, str | int | tuple[str, ...]]  # a path, and the value or the alternatives there


@dataclass(frozen=True)
class Rule:
    """Describes what is opened. `sources` are the nodes' groups, tags or networks; never all addresses."""

    name: str
    port: int
    sources: tuple[str, ...]
    target: str
    removal: str
    protocol: str = "tcp"


class Presence(StrEnum):
    """Decides what an action does when its lookup finds nothing, or something."""

    REQUIRED = "required"  # the action fails if nothing is found
    SKIP_IF_MISSING = "skip if missing"
    SKIP_IF_FOUND = "skip if found"
    OPTIONAL = "optional"  # only reported


@dataclass(frozen=True)
class Lookup:
    """Queries the cloud for a value that replaces `@variable@`. The CLI answers in JSON.

    `items` and `select` are paths such as `Reservations[].Instances[]` and `VpcId`. An item counts if it
    matches all of `where` and none of `excluding`; several values in `where` are alternatives. Equal values
    count once.
    """

    variable: str
    description: str
    argv: tuple[str, ...]
    items: str
    select: str
    where: tuple[Condition, ...] = ()
    excluding: tuple[tuple[str, str | int], ...] = ()
    basename: bool = False  # take what follows the last slash, as in https://…/zones/europe-west3-a
    after: str = ""  # take what follows this part of a path, as `projects` in …/projects/p1/global/networks/n
    multiple: bool = False  # several values are allowed
    presence: Presence = Presence.REQUIRED
    not_found: tuple[str, ...] = ()  # errors of the CLI that mean: nothing found
    if_missing: str = ""  # what it means if nothing is found, or what to do then

    @property
    def missing(self) -> str:
        hint = f" ({self.if_missing})" if self.if_missing else ""
        return f"{self.description} was not found{hint}"


@dataclass(frozen=True)
class FirewallAction:
    """One command, and the API request that the command sends."""

    rule: str
    description: str
    argv: tuple[str, ...]
    api: str
    body: Mapping[str, Any] | None = None
    lookups: tuple[Lookup, ...] = ()
    already_done: tuple[str, ...] = ()  # errors of the CLI that mean: an earlier run did this

    @property
    def program(self) -> str:
        return self.argv[0]


def rule_name(plan: Plan, suffix: str = "") -> str:
    """Returns the rule's name. Creation and removal both use it, so that they cannot disagree."""
    if not plan.infra_id:
        hint = f"give infraID from the installer's metadata.json: rules on {plan.platform} are named after it"
        raise OperatorError("required flag missing", subject="--infra-id", hint=hint)
    name = "-".join(filter(None, (plan.infra_id, PURPOSE, suffix)))
    if len(name) > NAME_MAX or not name[0].isalpha():
        room = NAME_MAX - len(name) + len(plan.infra_id)
        hint = f"it must start with a letter and have at most {room} characters"
        raise OperatorError(f"invalid rule name {name!r}", subject="--infra-id", hint=hint)
    return name


def bootstrap_name(plan: Plan) -> str:
    """Returns the installer's name for the bootstrap machine, the same in every cloud."""
    return f"{plan.infra_id}-bootstrap"


def source_networks(plan: Plan) -> tuple[IPNetwork, ...]:
    """Returns the machine networks. Raises OperatorError if together they contain all addresses."""
    networks = plan.networks.machine
    for version in (4, 6):
        family = [network for network in networks if network.version == version]
        for merged in ipaddress.collapse_addresses(family):  # type: ignore[type-var]
            if merged.prefixlen == 0:
                hint = "give the networks of the nodes (--machine-network): the port must not be open to all"
                text = f"{merged} contains all addresses"
                raise OperatorError(text, subject="networking.machineNetwork", hint=hint)
    return tuple(dict.fromkeys(networks))
