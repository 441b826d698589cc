"""``bootbridge address``: which addresses of this node the agents will dial, and why."""

from __future__ import annotations

import argparse
import json
import sys

from bootbridge.bootstrap.machine import address, network
from bootbridge.bootstrap.machine.address import AddressDecision
from bootbridge.bootstrap.machine.network import NodeNetwork
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import print_error, print_output
from bootbridge.cli.parser import add_json_flag
from bootbridge.cli.plan_flags import add_plan_flags, plan_from
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Finds the addresses of this node that go into the server's certificate and that agents dial.

What --node-ip or $OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP says wins. Else it is the address inside the
machine networks, else the source address of the default route; one per IP version of the service
networks, the primary one first. Several inside the machine networks are narrowed down by the default
route. Link-local, temporary, deprecated and tentative addresses do not count, nor do virtual ones
(secondary, or with a whole-length static prefix) where there is another.

Nothing is changed and nothing is sent."""

_EXAMPLES = """
{program}
{program} --install-config=install-config.yaml
{program} --machine-network=192.168.0.0/24 --json
{program} --node-ip=10.0.0.5 --node-ip=fd00::5
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)
    add_plan_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    plan = plan_from(flags)
    decision = address.decide(
        plan.node_ips, plan.networks.machine, _seen(bool(plan.node_ips)), plan.networks.families
    )
    print_error(*(f"{flags.program}: warning: {text}" for text in decision.warnings))
    print_output(_as_json(decision) if flags.json else _as_table(decision))
    return ExitCode.OK


def _seen(said: bool) -> NodeNetwork:
    """What is said needs no looking, so a machine without `ip` does for it."""
    try:
        return network.observe()
    except OperatorError:
        if said:
            return NodeNetwork()
        raise


def _as_json(decision: AddressDecision) -> str:
    document = {
        "addresses": [
            {"address": str(each), "reason": reason}
            for each, reason in zip(decision.addresses, decision.reasons, strict=True)
        ],
        "candidates": [
            {
                "address": str(verdict.seen.address),
                "prefixLength": verdict.seen.prefix_length,
                "interface": verdict.seen.interface,
                "chosen": verdict.chosen,
                "why": verdict.why,
            }
            for verdict in decision.candidates
        ],
        "warnings": list(decision.warnings),
    }
    return json.dumps(document, indent=2) + "\n"


def _as_table(decision: AddressDecision) -> str:
    lines = [f"{each}  ({why})" for each, why in zip(decision.addresses, decision.reasons, strict=True)]
    rows = [
        (f"{each.seen.address}/{each.seen.prefix_length}", each.seen.interface)
        for each in decision.candidates
    ]
    if rows:
        wide, narrow = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines += [""] + [
            f"{'*' if each.chosen else ' '} {one:{wide}}  {two:{narrow}}  {_coloured(each.why, each.chosen)}"
            for (one, two), each in zip(rows, decision.candidates, strict=True)
        ]
    return "\n".join(lines) + "\n"


def _coloured(text: str, good: bool) -> str:
    return f"\033[32m{text}\033[0m" if good and sys.stdout.isatty() else text


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={ExitCode.OK: "found", ExitCode.ERROR: "no address, or several and no rule to choose"},
)
