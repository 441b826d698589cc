"""``bootbridge status``: shows which resources are installed and whether the tunnel is ready."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from datetime import UTC, datetime

from bootbridge.bootstrap.install import status
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.install.status import InstallStatus
from bootbridge.bootstrap.plan.plan import IPAddress, Plan
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.install_flags import (
    add_install_flags,
    node_addresses,
    open_cluster,
    open_host,
    recorded_or_default_plan,
)
from bootbridge.cli.output import print_error, print_output
from bootbridge.cli.plan_flags import add_plan_flags
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Inspects every resource of the tunnel once: present, absent, changed (it differs from the plan; `bootbridge
up` corrects it) or unknown (it could not be read). Also shows whether the server answers, which agents
are connected, and when the certificates expire. Changes nothing."""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_install_flags(parser)
    add_plan_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    host = open_host(flags)
    plan, _ = recorded_or_default_plan(flags, host)
    addresses = _addresses(plan, flags.program)
    with closing(InstallContext(plan, host, open_cluster(flags, host, plan), addresses)) as context:
        found = status.inspect(context)
    document = json.dumps(found.document(), indent=2, ensure_ascii=False) + "\n"
    print_output(document if flags.json else _as_table(found))
    return ExitCode.OK if found.works else ExitCode.FINDINGS


def _addresses(plan: Plan, program: str) -> tuple[IPAddress, ...]:
    try:
        return node_addresses(plan)
    except OperatorError as error:
        print_error(f"{program}: warning: {error}")
        return ()


def _as_table(found: InstallStatus) -> str:
    lines = [f"{each.title:<24} {each.state:<8} {each.detail}".rstrip() for each in found.resources]
    health = "ready" if found.server_ready else "no agent connected" if found.server_healthy else "no answer"
    lines.append(f"{'server':<24} {health}")
    if found.agents is not None:
        lines.append(f"{'agents connected':<24} {len(found.agents)}: {', '.join(found.agents) or 'none'}")
    if found.certificates_expire:
        left = (found.certificates_expire - datetime.now(UTC)).total_seconds()
        ends = f"{found.certificates_expire:%Y-%m-%dT%H:%M:%SZ}"
        lines.append(f"{'certificates expire':<24} {ends} ({_hours(left)})")
    lines.append("The tunnel is ready." if found.works else "The tunnel is not ready.")
    return "\n".join(lines) + "\n"


def _hours(seconds: float) -> str:
    if seconds <= 0:
        return "EXPIRED"
    return f"in {int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


COMMAND = Command(
    _run,
    _DESCRIPTION,
    "{program}\n{program} --json",
    _add_flags,
    exit_codes={
        ExitCode.OK: "the tunnel is ready",
        ExitCode.ERROR: "the node could not be inspected",
        ExitCode.FINDINGS: "the tunnel is not installed, or not ready",
    },
)
