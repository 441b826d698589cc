"""``bootbridge address``: print the addresses of this node that agents dial, and why."""

from __future__ import annotations

import argparse
import json

from bootbridge.bootstrap.machine import address, network
from bootbridge.bootstrap.machine.address import AddressDecision
from bootbridge.bootstrap.machine.network import NodeNetwork
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import print_output, print_warnings, result_terminal
from bootbridge.cli.parser import add_json_flag
from bootbridge.cli.plan_flags import add_plan_flags, plan_from
from bootbridge.common.terminal.terminal import Cell, Mark, Styled, Terminal
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Prints the addresses of this node that agents dial. They are also in the server's certificate. There is one
address per IP version of the service networks, the primary version first.

Order of precedence:
  1. --node-ip, then $OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP
  2. the address inside the machine networks; if there are several, the one on the default route
  3. the source address of the default route

Link-local, temporary, deprecated and tentative addresses are ignored. Virtual addresses (secondary, or static
with prefix length /32 or /128) are used only as a last resort.

Nothing is changed or sent."""

_EXAMPLES = """
{program}
{program} --install-config=install-config.yaml
{program} --machine-network=192.168.0.0/24 --json
{program} --node-ip=10.0.0.5 --node-ip=fd00::5
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)
    add_plan_flags(parser, only=("install_config", "node_ip", "machine_network", "service_network"))


def _run(flags: argparse.Namespace) -> int:
    plan = plan_from(flags)
    decision = address.decide(
        plan.node_ips, plan.networks.machine, _network(bool(plan.node_ips)), plan.networks.families
    )
    print_warnings(flags.program, *decision.warnings)
    if flags.json:
        print_output(_as_json(decision))
    else:
        _show(decision, result_terminal())
    return ExitCode.OK


def _network(given: bool) -> NodeNetwork:
    """Returns this machine's network. Given addresses work without `ip`."""
    try:
        return network.observe()
    except OperatorError:
        if given:
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
                "address": str(candidate.found.address),
                "prefixLength": candidate.found.prefix_length,
                "interface": candidate.found.interface,
                "chosen": candidate.chosen,
                "reason": candidate.reason,
            }
            for candidate in decision.candidates
        ],
        "warnings": list(decision.warnings),
    }
    return json.dumps(document, indent=2) + "\n"


def _show(decision: AddressDecision, terminal: Terminal) -> None:
    """Prints the chosen addresses first, each with its reason; then every address of this node."""
    for each, reason in zip(decision.addresses, decision.reasons, strict=True):
        terminal.line(Styled(str(each), "strong"), f" ({reason})")
    if not decision.candidates:
        return
    terminal.line()
    rows: list[tuple[Cell, ...]] = []
    for candidate in decision.candidates:
        found, chosen = candidate.found, candidate.chosen
        lead: Cell = (Mark.GOOD if chosen else Mark.NONE) if terminal.live else ("*" if chosen else "")
        why = Styled(candidate.reason, "good" if chosen else "dim")
        rows.append((lead, f"{found.address}/{found.prefix_length}", found.interface, why))
    terminal.table(rows)


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={ExitCode.OK: "found", ExitCode.ERROR: "no address, or an ambiguous one"},
)
