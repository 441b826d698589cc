"""``bootbridge status``: what of the tunnel is there, and whether it works."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime

from bootbridge.bootstrap.install import status
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.install.status import Status
from bootbridge.bootstrap.plan.plan import IPAddress, Plan
from bootbridge.cli.command import complain, show
from bootbridge.cli.install_flags import (
    add_install_flags,
    node_addresses,
    open_cluster,
    open_host,
    plan_of_record,
)
from bootbridge.cli.plan_flags import add_plan_flags
from bootbridge.cli.verb import DONE, FOUND, Parser, run_verb, words
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Looks at every resource of the tunnel once: present, absent, changed (it is not as the plan says: `bootbridge
up` mends it) or unknown (it could not be looked at); whether the server answers, which agents are
connected to it, and until when the certificates hold. Changes nothing.

Exit codes: 0 it works; 1 it could not be looked at; 2 it does not work, or not all of it."""

_EXAMPLES = """
{program}
{program} --json
"""


def main(argv: Sequence[str] | None = None, program: str = "bootbridge status") -> int:
    """Run the verb; the result is the exit code."""
    return run_verb(program, lambda: _run(words(argv), program))


def _run(argv: list[str], program: str) -> int:
    parser = Parser(program, _DESCRIPTION, _EXAMPLES)
    add_install_flags(parser)
    add_plan_flags(parser)
    flags = parser.parse_args(argv)
    context = _site(flags, program)
    try:
        seen = status.look(context)
    finally:
        if context.cluster:
            context.cluster.close()
    show(json.dumps(seen.document(), indent=2, ensure_ascii=False) + "\n" if flags.json else _as_table(seen))
    return DONE if seen.works else FOUND


def _site(flags: argparse.Namespace, program: str) -> InstallContext:
    host: Host = open_host(flags)
    plan, _ = plan_of_record(flags, host)
    return InstallContext(plan, host, open_cluster(flags, host, plan), _addresses(plan, program))


def _addresses(plan: Plan, program: str) -> tuple[IPAddress, ...]:
    try:
        return node_addresses(plan)
    except OperatorError as error:
        complain(f"{program}: warning: {error}")
        return ()


def _as_table(seen: Status) -> str:
    lines = [
        f"{resource.title:<24} {resource.state:<8} {resource.detail}".rstrip() for resource in seen.resources
    ]
    health = "ready" if seen.server_ready else "no agent connected" if seen.server_healthy else "no answer"
    lines.append(f"{'server':<24} {health}")
    if seen.agents is not None:
        lines.append(f"{'agents connected':<24} {len(seen.agents)}: {', '.join(seen.agents) or 'none'}")
    if seen.certificates_expire:
        left = (seen.certificates_expire - datetime.now(UTC)).total_seconds()
        ends = f"{seen.certificates_expire:%Y-%m-%dT%H:%M:%SZ}"
        lines.append(f"{'certificates end':<24} {ends} ({_hours(left)})")
    lines.append("The tunnel works." if seen.works else "The tunnel does not work.")
    return "\n".join(lines) + "\n"


def _hours(seconds: float) -> str:
    if seconds <= 0:
        return "EXPIRED"
    return f"in {int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
