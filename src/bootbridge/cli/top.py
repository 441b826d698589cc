"""``bootbridge top``: a running server or agent, live in a terminal."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import time
from contextlib import closing
from dataclasses import dataclass

from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import print_error, print_output
from bootbridge.cli.values import parse_duration
from bootbridge.errors import OperatorError
from bootbridge.top.fetch import NoAnswerError, ProgramUrl, RowQuery, StatusClient
from bootbridge.top.live import LiveView
from bootbridge.top.once import coloured_text, json_text, plain_text
from bootbridge.top.port_forward import ClusterTarget, ForwardedProgram
from bootbridge.top.rates import History
from bootbridge.top.screen import can_control_terminal
from bootbridge.top.snapshot import AGENT, SERVER, Snapshot

INTERVAL_SECONDS = 1.0
INTERVAL_SECONDS_MIN, INTERVAL_SECONDS_MAX = 0.1, 3600.0
SERVER_ADMIN_PORT, AGENT_ADMIN_PORT = 8095, 8094

_DESCRIPTION = """\
Shows agents, connections, dials and failures with their rates, updated every second, from the admin port of
a server or agent. Without URL: the server on this machine, else the agent on this machine (ports 8095 and
8094, or those of the recorded plan). With --context, --kubeconfig, --server or --agent: a pod of the cluster,
through `kubectl port-forward`.

Of a program without /status, such as Konnectivity's Go server, it shows the totals of /metrics.

Keys: 1 to 4 or tab choose a table, s sorts, r reverses, / filters, arrows and pgup, pgdn scroll, p pauses, ?
shows help, q quits. Without a terminal it prints one sample, as --once does.

Rates are differences of two samples. UP is from the caller to the pod, DOWN from the pod to the caller."""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("url", nargs="?", metavar="URL", help="admin port, such as http://127.0.0.1:8095, host:port or 8095")
    add("--once", action="store_true", help="print one sample as text and exit")
    add("--json", action="store_true", help="print one sample as a JSON document and exit")
    add("--interval", metavar="DURATION", default="1s", help="time between samples, 100ms to 1h (default 1s)")
    group = parser.add_argument_group("a program in a cluster (needs kubectl)")
    add = group.add_argument
    add("--context", metavar="NAME", default="", help="context of the kubeconfig")
    add("--kubeconfig", metavar="FILE", default="", help="kubeconfig (default: as kubectl finds it)")
    add("--namespace", metavar="NAME", default="", help="look for pods in this namespace only")
    add("--server", metavar="POD|NODE", default=None, help="the server of this pod or node")
    add("--agent", metavar="POD|NODE", default=None, help="the agent of this pod or node")


@dataclass
class _Local:
    """The server of this machine, else its agent."""

    clients: list[StatusClient]

    def sample(self, query: RowQuery | None = None) -> Snapshot:
        if len(self.clients) == 1:
            return self.clients[0].sample(query)
        for client in self.clients:
            try:
                found = client.sample(query)
            except NoAnswerError:
                continue
            self.clients = [client]
            return found
        ports = " and ".join(str(client.url.port) for client in self.clients)
        hint = "give a URL, or --context or --agent for a program in a cluster"
        raise NoAnswerError(
            f"connection refused on ports {ports} of 127.0.0.1", subject="server, agent", hint=hint
        )

    @property
    def title(self) -> str:
        return str(self.clients[0].url)

    def close(self) -> None:
        """There is nothing to end: each sample has its own connection."""


def _run(flags: argparse.Namespace) -> int:
    interval = _interval(flags.interval)
    with closing(_program(flags)) as program:
        history = History(interval / 2)
        history.add(program.sample())
        if flags.once or flags.json or not can_control_terminal():
            if not (flags.once or flags.json):
                print_error(f"{flags.program}: not a terminal: one sample, as with --once")
            return _print_once(flags, program, history, interval)
        ended_by = LiveView(program, program.title, interval, history).run()
    return 128 + ended_by if ended_by else ExitCode.OK


def _print_once(
    flags: argparse.Namespace, program: _Local | ForwardedProgram, history: History, interval: float
) -> int:
    time.sleep(interval)  # a rate needs a second sample
    history.add(program.sample())
    if flags.json:
        return print_output(json_text(history, program.title))
    if sys.stdout.isatty():
        width, no_color = shutil.get_terminal_size().columns, bool(os.environ.get("NO_COLOR"))
        return print_output(coloured_text(history, program.title, width, no_color=no_color))
    return print_output(plain_text(history, program.title))


def _program(flags: argparse.Namespace) -> _Local | ForwardedProgram:
    in_cluster = [
        f"--{name}"
        for name in ("context", "kubeconfig", "namespace", "server", "agent")
        if getattr(flags, name) not in ("", None)
    ]
    if flags.url and in_cluster:
        raise OperatorError(f"cannot be combined with {flags.url!r}", subject=in_cluster[0])
    for name in ("server", "agent"):
        # `status`, `doctor` and `check` have a --server that takes a URL.
        if "://" in (value := getattr(flags, name) or ""):
            hint = f"a URL is given without a flag: `{flags.program} {shlex.quote(value)}`"
            raise OperatorError(f"invalid pod or node name {value!r}", subject=f"--{name}", hint=hint)
    if flags.server and flags.agent:
        raise OperatorError("cannot be combined with --server", subject="--agent")
    if in_cluster:
        program = AGENT if flags.agent else SERVER if flags.server else ""
        name = flags.agent or flags.server or ""
        return ForwardedProgram(
            ClusterTarget(flags.kubeconfig, flags.context, flags.namespace, program, name)
        )
    if flags.url:
        return _Local([StatusClient(ProgramUrl.parse(flags.url))])
    return _Local([StatusClient(ProgramUrl("127.0.0.1", port)) for port in _local_ports()])


def _local_ports() -> list[int]:
    """Ports of the recorded installation, then the programs' defaults."""
    from bootbridge.bootstrap.plan import record
    from bootbridge.bootstrap.plan.plan import PATHS
    from bootbridge.common.host import Host

    servers, agents = [], []
    for paths in PATHS.values():
        try:
            data = Host().read(paths.plan_record)
            plan = record.load(data, paths.plan_record) if data is not None else None
        except OperatorError:
            continue  # not readable by this user: the defaults are left
        if plan is not None:
            servers.append(plan.ports.server_admin)
            agents.append(plan.ports.agent_admin)
    return list(dict.fromkeys([*servers, SERVER_ADMIN_PORT, *agents, AGENT_ADMIN_PORT]))


def _interval(text: str) -> float:
    hint = "100ms to 1h, for example 2s"
    try:
        seconds = float(text) if text.replace(".", "", 1).isdecimal() else parse_duration(text)
    except ValueError:
        raise OperatorError(f"invalid duration {text!r}", subject="--interval", hint=hint) from None
    if not INTERVAL_SECONDS_MIN <= seconds <= INTERVAL_SECONDS_MAX:
        raise OperatorError(f"out of range: {text}", subject="--interval", hint=hint)
    return seconds


COMMAND = Command(
    _run,
    _DESCRIPTION,
    """
    {program}
    {program} http://127.0.0.1:8095
    {program} --context my-cluster --agent worker-1
    {program} --once | grep stalled
    """,
    _add_flags,
    exit_codes={
        ExitCode.OK: "ended by q or ctrl-c, or the sample was printed",
        ExitCode.ERROR: "no answer, or the URL is not that of a server or agent",
        128 + signal.SIGTERM: "ended by SIGTERM",
    },
)
