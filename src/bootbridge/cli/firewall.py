"""``bootbridge firewall``: open the agents' port on the bootstrap node to the nodes, and close it again."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bootbridge.bootstrap import firewall
from bootbridge.bootstrap.firewall import files, manual_instructions, rule_record
from bootbridge.bootstrap.firewall.model import Lookup
from bootbridge.bootstrap.firewall.runner import require_programs
from bootbridge.bootstrap.firewall.shell_script import command_line
from bootbridge.bootstrap.plan import record as plan_record
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.cli.command import Command, CommandGroup, ExitCode
from bootbridge.cli.output import hint_terminal, print_output, result_terminal
from bootbridge.cli.plan_flags import FIREWALL_FIELDS, add_plan_flags, plan_from
from bootbridge.common.files import Asset, read_file, write_error, write_file
from bootbridge.common.terminal.figures import counted
from bootbridge.common.terminal.terminal import Mark, Styled, Terminal
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Opens the agents' port (TCP 8091) on the bootstrap node to the cluster's nodes, and to nothing else.

Nothing is changed without --apply. IDs that only the cloud knows are looked up when a command runs;
until then they are printed as shell variables. --apply prints what the lookups found.

Supported clouds: aws, azure, gcp, ibmcloud, openstack, powervs. They require --infra-id. Region, project,
resource group and cloud come from --install-config; without it, from the CLI's own configuration. On every
other platform, with --user-provisioned, and if install-config leaves the firewall to you, all commands print
what to open.

create --apply writes a record of the plan and of what it found. remove reads it, so that it removes the rule
where it was created, also after the installer has consumed install-config.yaml."""
_EXAMPLES = """
{program} show --install-config install-config.yaml --infra-id mycluster-x7k2p
{program} create --platform aws --infra-id mycluster-x7k2p --apply
{program} remove --record mycluster-x7k2p-firewall.json --apply
{program} create --platform gcp --infra-id mycluster-x7k2p --output assets   # assets/firewall/create.sh, …
{program} show --platform baremetal --machine-network 192.0.2.0/24 --json
"""


def _add_flags(direction: str, parser: argparse.ArgumentParser) -> None:
    what = "rules" if direction == "show" else "actions, with --apply results,"
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")
    parser.add_argument("--output", metavar="DIR", help="write JSON and scripts to DIR/firewall")
    parser.set_defaults(apply=False)
    if direction != "show":
        parser.add_argument("--apply", action="store_true", help="print and run the commands")
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="record that create --apply writes and remove reads (default INFRA_ID-firewall.json in the "
        "working directory; remove: if it exists). A plan.json of the node can be read too",
    )
    parser.add_argument(
        "--release",
        metavar="X.Y",
        help="OpenShift release, by which the installer's security groups are named (default: the cloud is "
        "asked for the names of all releases)",
    )
    add_plan_flags(parser, only=FIREWALL_FIELDS)


def _run(direction: str, flags: argparse.Namespace) -> int:
    flags.direction = direction
    record = _existing_record(flags) if direction != "create" else None
    plan = plan_from(flags, base=_recorded_plan(record) if record else None)
    if flags.release:
        plan = replace(plan, cloud=replace(plan.cloud, release=flags.release))
    firewall.rules(plan)  # raises if the plan is invalid, before anything is written
    if flags.output:
        _write(plan, Path(flags.output))
    if flags.apply:
        return _apply(plan, flags, record)
    if flags.json:
        return print_output(files.as_json(plan, flags.direction) + "\n")
    _show(plan, flags)
    return ExitCode.OK


def _existing_record(flags: argparse.Namespace) -> Path | None:
    """Returns the record to read: the given one, or the default one if it exists."""
    if flags.record:
        return Path(flags.record)
    path = Path(rule_record.file_name(flags.infra_id)) if flags.infra_id else None
    return path if path and path.exists() else None


def _recorded_plan(path: Path) -> Plan:
    return plan_record.load(read_file(path, "--record"), str(path))


def _show(plan: Plan, flags: argparse.Namespace) -> None:
    if reason := firewall.unmanaged_reason(plan):
        print_output(manual_instructions.as_text(plan, reason))
    elif flags.direction == "show":
        _show_rules(plan, result_terminal())
    else:
        print_output(_commands(plan, flags.direction))
        command = shlex.join([*flags.program.split(), *flags.words, "--apply"])
        hint_terminal().next_steps([(command, "run these commands")])


def _show_rules(plan: Plan, terminal: Terminal) -> None:
    for number, rule in enumerate(firewall.rules(plan)):
        if number:
            terminal.line()
        terminal.facts(
            {
                "rule": rule.name,
                "port": f"{rule.protocol.upper()} {rule.port}",
                "from": ", ".join(rule.sources),
                "to": rule.target,
                "removal": rule.removal,
            }
        )


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


def _apply(plan: Plan, flags: argparse.Namespace, record: Path | None) -> int:
    if reason := firewall.unmanaged_reason(plan):
        hint = "you manage this firewall; run without --apply to see what to open"
        text = f"not supported on platform {plan.platform}: {reason}"
        raise OperatorError(text, subject="--apply", hint=hint)
    if flags.direction == "remove":
        return _remove(plan, flags, record)
    actions = firewall.create(plan)
    require_programs(actions)
    path = Path(flags.record or rule_record.file_name(plan.infra_id))
    # Ahead of the first command: nothing is created without a record of where.
    _save(path, plan)
    results = _run_actions(actions, flags)
    _save(path, firewall.completed(plan, results))
    failed = sum(result.failed for result in results)
    if not flags.json:
        removal = shlex.join(["bootbridge", "firewall", "remove", "--record", str(path), "--apply"])
        again = shlex.join([*flags.program.split(), *flags.words])
        _summarise(
            f"TCP port {plan.ports.agent} is {'not open' if failed else 'open'}",
            good=not failed,
            record=path,
            next_steps=[(again, "try again; what exists is kept"), (removal, "or remove what was created")]
            if failed
            else [(removal, "close the port, when the bootstrap is complete")],
        )
    return ExitCode.ERROR if failed else ExitCode.OK


def _remove(plan: Plan, flags: argparse.Namespace, record: Path | None) -> int:
    results = _run_actions(firewall.remove(plan), flags, keep_going=True)
    failed = sum(result.failed for result in results)
    if not flags.json:
        again = shlex.join([*flags.program.split(), *flags.words])
        _summarise(
            f"{counted(failed, 'rule')} not removed" if failed else f"TCP port {plan.ports.agent} is closed",
            good=not failed,
            record=record,
            next_steps=[(again, "try again")] if failed else [],
        )
    if failed:
        return ExitCode.FINDINGS
    if record and record.name == rule_record.file_name(plan.infra_id):
        record.unlink(missing_ok=True)
    return ExitCode.OK


def _summarise(
    sentence: str, *, good: bool, record: Path | None, next_steps: Sequence[tuple[str, str]]
) -> None:
    result_terminal().summary(
        Mark.GOOD if good else Mark.BAD,
        sentence,
        details=[f"Record: {record}"] if record else [],
        next_steps=next_steps,
    )


def _save(path: Path, plan: Plan) -> None:
    write_file(path, Asset(plan_record.dump(plan), 0o600))


def _run_actions(
    actions: list[firewall.FirewallAction], flags: argparse.Namespace, keep_going: bool = False
) -> list[firewall.ActionResult]:
    if flags.json:
        results = firewall.run(actions, keep_going=keep_going)
        print_output(json.dumps([_as_data(result) for result in results], indent=2) + "\n")
        return results
    shown: dict[tuple[tuple[str, ...], str], str] = {}

    def report_found(lookup: Lookup, values: Sequence[str]) -> None:
        # Several actions need the same value, and several lookups may take parts of one that was printed.
        source, text = (lookup.argv, lookup.select), ", ".join(values)
        if text not in shown.get(source, ""):
            shown[source] = f"{shown.get(source, '')} {text}"
            print(f"  found {lookup.description}: {text}", flush=True)

    return firewall.run(
        actions, keep_going=keep_going, announce=_announce, report_found=report_found, report=_report
    )


def _announce(action: firewall.FirewallAction) -> None:
    terminal = result_terminal()
    terminal.line(action.description)
    terminal.verbatim(command_line(action.argv, action.lookups), "dim", indent=2)


def _report(result: firewall.ActionResult) -> None:
    detail = f": {result.detail}" if result.detail else ""
    terminal = Terminal(sys.stderr) if result.failed else result_terminal()
    terminal.line(Styled(f"{result.outcome}{detail}", "bad" if result.failed else "good"), indent=2)


def _as_data(result: firewall.ActionResult) -> dict[str, object]:
    action = result.action
    return {
        "rule": action.rule,
        "description": action.description,
        "outcome": str(result.outcome),
        "detail": result.detail,
        "found": result.found,
    }


def _command(direction: str, summary: str, exit_codes: dict[int, str]) -> Command:
    examples = [line for line in _EXAMPLES.splitlines() if f"{{program}} {direction}" in line]
    text = "\n".join(examples).replace(f"{{program}} {direction}", "{program}")
    return Command(
        partial(_run, direction), _DESCRIPTION, text, partial(_add_flags, direction), exit_codes, summary
    )


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
