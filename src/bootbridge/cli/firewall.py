"""``bootbridge firewall``: open the agents' port on the bootstrap node to the nodes, and close it again."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from bootbridge.bootstrap import firewall
from bootbridge.bootstrap.firewall import files, manual_instructions
from bootbridge.bootstrap.firewall.shell_script import command_line
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.cli.command import Command, CommandGroup, ExitCode
from bootbridge.cli.output import print_output
from bootbridge.cli.plan_flags import add_plan_flags, plan_from
from bootbridge.common.files import write_error, write_file
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Opens the agents' port (TCP 8091) on the bootstrap node to the cluster's nodes, and to nothing else.

Nothing is changed without --apply. IDs that only the cloud knows are looked up when a command runs;
until then they are printed as shell variables.

Supported clouds: aws, azure, gcp, ibmcloud, openstack, powervs. They require --infra-id. On every other
platform, and with --user-provisioned, you manage the firewall: all commands print what to open."""
_EXAMPLES = """
{program} show --install-config install-config.yaml --infra-id mycluster-x7k2p
{program} create --platform aws --infra-id mycluster-x7k2p --apply
{program} remove --platform aws --infra-id mycluster-x7k2p --apply
{program} create --platform gcp --infra-id mycluster-x7k2p --output assets   # assets/firewall/create.sh, …
{program} show --platform baremetal --machine-network 192.0.2.0/24 --json
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print actions as JSON; with --apply, results")
    parser.add_argument("--output", metavar="DIR", help="write JSON and scripts to DIR/firewall")
    parser.add_argument("--apply", action="store_true", help="print and run the commands")
    add_plan_flags(parser)


def _run(direction: str, flags: argparse.Namespace) -> int:
    flags.direction = direction
    plan = plan_from(flags)
    if flags.apply and flags.direction == "show":
        hint = "use create or remove instead of show"
        raise OperatorError("not supported by show", subject="--apply", hint=hint)
    firewall.rules(plan)  # raises if the plan is invalid, before anything is written
    if flags.output:
        _write(plan, Path(flags.output))
    if flags.apply:
        return _apply(plan, flags)
    if flags.json:
        return print_output(files.as_json(plan, flags.direction) + "\n")
    return print_output(_text(plan, flags.direction))


def _text(plan: Plan, direction: str) -> str:
    if not firewall.is_managed(plan):
        return manual_instructions.as_text(plan)
    return _table(plan) if direction == "show" else _commands(plan, direction)


def _table(plan: Plan) -> str:
    blocks = []
    for rule in firewall.rules(plan):
        rows = {
            "rule": rule.name,
            "port": f"{rule.protocol.upper()} {rule.port}",
            "from": ", ".join(rule.sources),
            "to": rule.target,
            "removal": rule.removal,
        }
        blocks.append("".join(f"{name:<9}{value}\n" for name, value in rows.items()))
    return "\n".join(blocks)


def _commands(plan: Plan, direction: str) -> str:
    blocks = []
    for action in files.actions(plan, direction):
        lookups = "".join(
            f"#   ${lookup.variable}: {lookup.description}, from\n#     {command_line(lookup.argv)}\n"
            for lookup in action.lookups
        )
        blocks.append(f"# {action.description}\n{lookups}{command_line(action.argv, action.lookups)}\n")
    return "\n".join(blocks)


def _write(plan: Plan, directory: Path) -> None:
    for relative, asset in firewall.render_files(plan).items():
        path = directory / relative
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(path, error) from error
        write_file(path, asset)


def _apply(plan: Plan, flags: argparse.Namespace) -> int:
    if not firewall.is_managed(plan):
        hint = "you manage this firewall; run without --apply to see what to open"
        text = f"not supported on platform {plan.platform}"
        raise OperatorError(text, subject="--apply", hint=hint)
    removing = flags.direction == "remove"
    quiet = flags.json
    results = firewall.run(
        files.actions(plan, flags.direction),
        keep_going=removing,
        announce=lambda action: None if quiet else _announce(action),
        report=lambda result: None if quiet else _report(result),
    )
    if flags.json:
        print_output(json.dumps([_as_data(result) for result in results], indent=2) + "\n")
    if any(result.failed for result in results):
        return ExitCode.FINDINGS if removing else ExitCode.ERROR
    return ExitCode.OK


def _announce(action: firewall.FirewallAction) -> None:
    print(f"{action.description}\n  {command_line(action.argv, action.lookups)}", flush=True)


def _report(result: firewall.ActionResult) -> None:
    detail = f": {result.detail}" if result.detail else ""
    stream = sys.stderr if result.failed else sys.stdout
    print(f"  {result.outcome}{detail}", file=stream, flush=True)


def _as_data(result: firewall.ActionResult) -> dict[str, str]:
    action = result.action
    return {
        "rule": action.rule,
        "description": action.description,
        "outcome": str(result.outcome),
        "detail": result.detail,
    }


def _command(direction: str, summary: str, exit_codes: dict[int, str]) -> Command:
    examples = [line for line in _EXAMPLES.splitlines() if f"{{program}} {direction}" in line]
    text = "\n".join(examples).replace(f"{{program}} {direction}", "{program}")
    return Command(partial(_run, direction), _DESCRIPTION, text, _add_flags, exit_codes, summary)


COMMAND = CommandGroup(
    _DESCRIPTION,
    {
        "Commands": {
            "create": _command(
                "create", "print or run the commands of the cloud's CLI that open the port", {}
            ),
            "remove": _command(
                "remove",
                "print or run the commands that close it; idempotent",
                {ExitCode.FINDINGS: "with --apply: a rule could not be removed"},
            ),
            "show": _command("show", "print the rules: name, port, sources, target, removal", {}),
        }
    },
    _EXAMPLES,
)
