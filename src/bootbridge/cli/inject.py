"""``bootbridge inject``: add the tunnel to a bootstrap.ign, or remove it."""

from __future__ import annotations

import argparse
import json
import shlex
from datetime import UTC, datetime
from pathlib import Path

from bootbridge.bootstrap.ignition import inject
from bootbridge.bootstrap.plan import record as plan_record
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.bootstrap.render import output_directory
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import print_output, result_terminal
from bootbridge.cli.parser import add_json_flag
from bootbridge.cli.plan_flags import add_plan_flags, plan_from
from bootbridge.common.files import Tree, read_file, rewrite_file
from bootbridge.common.terminal.terminal import Mark
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Adds the tunnel to a bootstrap.ign of an unmodified installer: files, and lines at four places in bootkube.sh.
Platform, networks and infraID come from the install-config inside the file; flags have precedence.

Injecting again replaces the earlier injection. --remove restores the original, byte for byte.

The file is rejected, and nothing written, if it is a bootstrap in place, contains another tunnel or expired
certificates, has an unsupported bootkube.sh, or was changed after the injection.

On the node, 'systemctl start bootbridge-cleanup' removes the tunnel after an abandoned bootstrap."""
_EXAMPLES = """\
openshift-install create ignition-configs --dir install
{program} install/bootstrap.ign
{program} install/bootstrap.ign --dry-run
{program} install/bootstrap.ign --image registry.example/bootbridge:1 --protocol HTTPConnect
{program} install/bootstrap.ign -o - | jq .storage.files[].path
{program} install/bootstrap.ign --remove
# Edit the manifests first
bootbridge render --output tunnel --install-config install-config.yaml
{program} install/bootstrap.ign --assets tunnel
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="BOOTSTRAP.IGN", help="the ignition file, spec 3.x")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="output file, - for stdout (default: in place)"
    )
    parser.add_argument("--remove", action="store_true", help="remove the tunnel")
    parser.add_argument(
        "--dry-run", "--check", action="store_true", help="print what would be done, write nothing"
    )
    add_json_flag(parser)
    parser.add_argument(
        "--assets",
        metavar="DIR",
        help="use the plan and the files of a 'bootbridge render --output DIR'",
    )
    add_plan_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    given = read_file(flags.file)
    done, document, facts, plan = _removed(flags, given) if flags.remove else _injected(flags, given)
    if flags.output == "-":
        return _print(document, flags)
    target = Path(flags.output or flags.file)
    is_new = flags.output is not None or document != given
    written = is_new and not flags.dry_run
    if written:
        rewrite_file(target, document, like=Path(flags.file))
    facts |= {"file": str(target), "changed": document != given, "written": written}
    if flags.json:
        return print_output(json.dumps(facts, indent=2) + "\n")
    _show(done, facts, plan, flags)
    return ExitCode.OK


def _print(document: bytes, flags: argparse.Namespace) -> int:
    """Writes the new file to stdout, and nothing else."""
    if flags.json:
        raise OperatorError("cannot be combined with --json", subject="--output -")
    if flags.dry_run:
        raise OperatorError("cannot be combined with --dry-run", subject="--output -")
    return print_output(document.decode())


# What was done, the new file, the facts for --json, and the plan that was injected.
_Outcome = tuple[str, bytes, dict[str, object], Plan | None]


def _injected(flags: argparse.Namespace, given: bytes) -> _Outcome:
    assets = _assets(flags)
    plan = plan_record.find(assets, flags.assets) if assets else None
    result = inject.inject(
        given,
        lambda base: plan or plan_from(flags, base=base),
        datetime.now(UTC),
        flags.file,
        changed=assets,
    )
    facts: dict[str, object] = {
        "action": "inject",
        "platform": result.plan.platform,
        "infraID": result.plan.infra_id,
        "replacesEarlier": result.replaced_earlier,
        "files": list(result.files),
    }
    done = f"tunnel injected: {len(result.files)} files, 4 places in bootkube.sh"
    return done, result.document, facts, result.plan


def _assets(flags: argparse.Namespace) -> Tree:
    """Returns the files below --assets by their path on the node. Flags of the plan are rejected."""
    if not flags.assets:
        return {}
    others = [name for name, value in vars(flags).items() if value is not None and name not in _OWN_FLAGS]
    if others:
        flag = f"--{others[0].replace('_', '-')}"
        raise OperatorError(
            "cannot be combined with --assets", subject=flag, hint="render again with this flag"
        )
    return {f"/{path}": asset for path, asset in output_directory.read(Path(flags.assets)).items()}


_OWN_FLAGS = {"file", "output", "remove", "dry_run", "json", "assets", "program", "words"}


def _removed(flags: argparse.Namespace, given: bytes) -> _Outcome:
    document = inject.remove(given, flags.file)
    done = "tunnel removed: the installer's file is restored, byte for byte"
    return (done if document != given else "no tunnel found"), document, {"action": "remove"}, None


def _show(done: str, facts: dict[str, object], plan: Plan | None, flags: argparse.Namespace) -> None:
    dry = bool(facts["changed"]) and not facts["written"]
    ending = " (unchanged)" if not facts["changed"] else " (dry run: nothing written)" if dry else ""
    details, next_steps = [], []
    if dry:
        words = [word for word in flags.words if word not in ("--dry-run", "--check")]
        next_steps = [(shlex.join([*flags.program.split(), *words]), "write the file")]
    elif plan:
        port = f"TCP port {plan.ports.agent}"
        details = [f"The nodes must reach {port} of the bootstrap node: agents dial it."]
        file = shlex.quote(str(facts["file"]))
        next_steps = [
            (f"bootbridge check {file}", "check the file, then boot the node with it"),
            (_firewall_command(plan), f"open {port}, before the boot"),
        ]
    sentence = f"{facts['file']}: {done}{ending}"
    mark = Mark.NONE if dry else Mark.GOOD
    result_terminal().summary(mark, sentence, details=details, next_steps=next_steps, apart=False)


def _firewall_command(plan: Plan) -> str:
    # Imported here, because the package takes a tenth of the time of an injection.
    from bootbridge.bootstrap.firewall.providers import is_managed

    words = ["bootbridge", "firewall", "create", "--platform", plan.platform]
    if is_managed(plan):
        words += ["--infra-id", plan.infra_id or "ID", "--apply"]
    return shlex.join(words)


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={
        ExitCode.OK: "done, or nothing to do",
        ExitCode.ERROR: "rejected or failed; nothing written",
    },
)
