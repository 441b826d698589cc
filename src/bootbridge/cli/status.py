"""``bootbridge status``: shows which resources are installed and whether the tunnel is ready."""

from __future__ import annotations

import argparse
import json
import shlex
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from bootbridge.bootstrap.diagnose import running_server
from bootbridge.bootstrap.diagnose.running_server import RunningServer
from bootbridge.bootstrap.install import status
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.install.status import ABSENT, CHANGED, PRESENT, UNKNOWN, InstallStatus
from bootbridge.bootstrap.plan.plan import IPAddress, Plan
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.install_flags import (
    add_install_flags,
    add_recorded_plan_flags,
    node_addresses,
    open_cluster,
    open_host,
    recorded_or_default_plan,
    require_readable,
)
from bootbridge.cli.output import print_output, print_warnings, result_terminal
from bootbridge.cli.running_server_flags import add_server_flag, running_server_from
from bootbridge.common.terminal.figures import duration
from bootbridge.common.terminal.terminal import Cell, Mark, Styled, Terminal
from bootbridge.errors import OperatorError
from bootbridge.top.snapshot import NO_AGENT

_DESCRIPTION = """\
Inspects every resource of the tunnel once: present, absent, changed (it differs from the plan; `bootbridge
up` corrects it) or unknown (it could not be read). Also shows whether the server answers, which agents
are connected, and when the certificates expire. Changes nothing.

With --watch it looks again every 2 seconds, and shows the stages of bootkube (OpenShift), the agents per node
and the first successful dial as well. It ends when the tunnel is ready, or the bootstrap has completed.

With --server URL it shows a server that you started yourself: ready or not, its agents, connections, dials
and certificates. `bootbridge top URL` shows the same live."""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watch",
        action="store_true",
        help="show stages, resources, agents per node and the first dial, until the tunnel is ready; in a "
        "pipe, a line for each change",
    )
    add_server_flag(parser, "instead, the status")
    add_install_flags(parser)
    add_recorded_plan_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    if flags.server:
        return _of_server(flags)
    if flags.watch:
        from bootbridge.cli.status_watch import watch

        require_readable(open_host(flags))  # waiting does not resolve a wrong directory or missing permission
        warned: set[str] = set()
        return watch(lambda: closing(_open_context(flags, warned)), as_json=flags.json)
    with closing(_open_context(flags, set())) as context:
        found = status.inspect(context)
    if flags.json:
        print_output(json.dumps(found.document(), indent=2, ensure_ascii=False) + "\n")
    else:
        _show(found, result_terminal())
    return ExitCode.OK if found.works else ExitCode.FINDINGS


def _of_server(flags: argparse.Namespace) -> int:
    if flags.watch:
        hint = shlex.join(["bootbridge", "top", flags.server])
        raise OperatorError("cannot be combined with --server", subject="--watch", hint=f"use `{hint}`")
    server = running_server_from(flags)
    document = running_server.status_document(server)
    if flags.json:
        print_output(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        _show_server(document, server, result_terminal())
    return ExitCode.OK if document["works"] else ExitCode.FINDINGS


def _show_server(document: dict[str, Any], server: RunningServer, terminal: Terminal) -> None:
    if not document["server"]["healthy"]:
        terminal.table([(Mark.BAD, "server", "no answer", document["reason"])])
        steps = (("proxy-server --help", "how to start it"),)
        terminal.summary(Mark.BAD, "The server does not answer.", next_steps=steps)
        return
    sample = server.sample
    good = Mark.GOOD if sample.ready else Mark.WARNING
    about = [f"{sample.program} {sample.version}".strip(), *sample.facts]
    if sample.uptime_seconds is not None:
        about.append(f"up {duration(sample.uptime_seconds)}")
    failed = f"{sample.dials_failed_total:,} failed"
    rows: list[tuple[Cell, ...]] = [
        (good, "server", "ready" if sample.ready else NO_AGENT, ", ".join(about)),
        (good, "agents connected", str(sample.peers_total), running_server.agent_names(sample)),
        (Mark.NONE, "connections", f"{sample.connections_total:,}", ""),
        (Mark.NONE, "dials", f"{sample.dials_succeeded:,} succeeded", failed),
    ]
    if expires := running_server.expiry(sample):
        rows.append(_expiry_row(expires))
    terminal.table(rows)
    warnings = (text for text in sample.warnings if text != NO_AGENT)  # the first row shows it
    for text in filter(None, (sample.note, *warnings)):
        terminal.record([Mark.WARNING, text])
    if sample.ready:
        steps = ((f"bootbridge top {server.url}", "watch it"),)
        terminal.summary(Mark.GOOD, "The server is ready.", next_steps=steps)
    else:
        steps = ((f"bootbridge doctor --server {server.url}", "find the first broken hop, and the fix"),)
        terminal.summary(Mark.BAD, "The server is not ready.", next_steps=steps)


def _expiry_row(expires: datetime) -> tuple[Cell, ...]:
    left = (expires - datetime.now(UTC)).total_seconds()
    mark, when = (Mark.GOOD, f"in {duration(left)}") if left > 0 else (Mark.BAD, "EXPIRED")
    return mark, "certificates expire", when, f"{expires:%Y-%m-%dT%H:%M:%SZ}"


def _open_context(flags: argparse.Namespace, warned: set[str]) -> InstallContext:
    host = open_host(flags)
    plan, _ = recorded_or_default_plan(flags, host)
    addresses = _addresses(plan, flags.program, warned)
    return InstallContext(plan, host, open_cluster(flags, host, plan), addresses)


def _addresses(plan: Plan, program: str, warned: set[str]) -> tuple[IPAddress, ...]:
    """`warned` has the warnings that were printed already."""
    try:
        return node_addresses(plan)
    except OperatorError as error:
        if str(error) not in warned:
            print_warnings(program, str(error))
        warned.add(str(error))
        return ()


_MARKS = {PRESENT: Mark.GOOD, ABSENT: Mark.SKIPPED, CHANGED: Mark.WARNING, UNKNOWN: Mark.UNKNOWN}


def _show(found: InstallStatus, terminal: Terminal) -> None:
    rows: list[tuple[Cell, ...]] = []
    shown = ""
    for each in found.resources:
        mark = Mark.WARNING if each.state == PRESENT and each.detail else _MARKS[each.state]
        repeated = terminal.live and each.detail and each.detail == shown
        rows.append((mark, each.title, each.state, Styled("as above", "dim") if repeated else each.detail))
        shown = each.detail or shown
    healthy = Mark.WARNING if found.server_healthy else Mark.SKIPPED
    health = "no agent connected" if found.server_healthy else "no answer"
    rows.append((Mark.GOOD, "server", "ready", "") if found.server_ready else (healthy, "server", health, ""))
    if found.agents is not None:
        mark = Mark.GOOD if found.agents else Mark.WARNING
        rows.append((mark, "agents connected", str(len(found.agents)), ", ".join(found.agents)))
    if found.certificates_expire:
        rows.append(_expiry_row(found.certificates_expire))
    terminal.table(rows)
    steps: tuple[tuple[str, str], ...]
    if found.works:
        steps = (("bootbridge doctor", "test each hop up to a pod"),)
        terminal.summary(Mark.GOOD, "The tunnel is ready.", next_steps=steps)
    elif {each.state for each in found.resources} in ({ABSENT}, {ABSENT, UNKNOWN}):
        steps = (
            ("bootbridge up --image=REF", "install it on this node"),
            ("bootbridge status --server http://127.0.0.1:8095", "show a server that you started yourself"),
        )
        terminal.summary(Mark.SKIPPED, "The tunnel is not installed.", next_steps=steps)
    else:
        steps = (("bootbridge doctor", "find the first broken hop, and the fix"),)
        terminal.summary(Mark.BAD, "The tunnel is not ready.", next_steps=steps)


COMMAND = Command(
    _run,
    _DESCRIPTION,
    "{program}\n{program} --json\n{program} --watch\n{program} --server http://127.0.0.1:8095",
    _add_flags,
    exit_codes={
        ExitCode.OK: "the tunnel is ready",
        ExitCode.ERROR: "the node could not be inspected",
        ExitCode.FINDINGS: "the tunnel is not installed, or not ready",
    },
)
