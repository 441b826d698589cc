"""A server that was started by hand, known by its admin address: no installation, cluster or plan is needed.

It is read as `bootbridge top` reads it: `/status`, or `/metrics` of a Go server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from bootbridge.bootstrap.diagnose.check.result import (
    CheckResult,
    CheckVerdict,
    failed,
    not_run,
    passed,
    run,
    warned,
)
from bootbridge.bootstrap.diagnose.doctor.step import Diagnosis, DiagnosisStep, Hop, run_steps
from bootbridge.common.terminal.figures import counted, duration
from bootbridge.errors import OperatorError
from bootbridge.frontend_client.call import DialError
from bootbridge.frontend_client.dial_problem import explain_dial_error
from bootbridge.frontend_client.frontend import FrontendAddress, UnixFrontend
from bootbridge.frontend_client.tunnel_stream import open_tunnel
from bootbridge.top.fetch import NoAnswerError, ProgramUrl, StatusClient
from bootbridge.top.snapshot import SERVER, Snapshot
from bootbridge.top.status_document import CERTIFICATE_WARNING_SECONDS

NAMES_SHOWN_MAX = 5
START = (
    "start proxy-server; --server is its --admin-bind-address and --admin-port (127.0.0.1:8095 by default)"
)
RENEW = "renew it: `bootbridge certs renew`, or as you issued it; the server reloads the files by itself"


@dataclass
class RunningServer:
    """`frontend` is where callers connect: given, or the unix socket that the server names."""

    url: ProgramUrl
    frontend: FrontendAddress | None = None
    destination: str = ""
    dial_seconds: float = 10.0
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @cached_property
    def sample(self) -> Snapshot:
        """Raises NoAnswerError or NotTheProgramError, or OperatorError if it is an agent."""
        found = StatusClient(self.url).sample()
        if found.program != SERVER:
            hint = (
                f"give the server's admin port, 8095 by default; `bootbridge top {self.url}` shows this one"
            )
            raise OperatorError(f"is a {found.program}", subject=str(self.url), hint=hint)
        return found

    def known_frontend(self) -> FrontendAddress | None:
        if self.frontend is None:
            path = Path(self.sample.frontend)
            # A relative path is relative to the server's directory, which need not be ours.
            if path.is_socket():
                return UnixFrontend(path)
        return self.frontend


# --- status


def status_document(server: RunningServer) -> dict[str, Any]:
    """Returns the facts for `status --json`. No answer is a fact too."""
    try:
        sample = server.sample
    except NoAnswerError as error:
        state = {"healthy": False, "ready": False, "agents": None}
        return {
            "version": 1,
            "works": False,
            "source": str(server.url),
            "reason": str(error),
            "server": state,
        }
    ends = expiry(sample)
    return {
        "version": 1,
        "works": sample.ready,
        "source": str(server.url),
        "note": sample.note,
        "server": {
            "healthy": True,
            "ready": sample.ready,
            "version": sample.version,
            "frontend": sample.frontend,
            "agents": [peer.id for peer in sample.peers] if sample.has_details else None,
            "agentCount": sample.peers_total,
        },
        "connections": sample.connections_total,
        "dials": {"succeeded": sample.dials_succeeded, "failed": sample.dials_failed_total},
        "certificatesExpireAt": f"{ends:%Y-%m-%dT%H:%M:%SZ}" if ends else None,
        "warnings": list(sample.warnings),
    }


def expiry(sample: Snapshot) -> datetime | None:
    """When the first of its certificates expires; None: not known, as of a Go server."""
    return min((row.expires for row in sample.certificates if row.expires), default=None)


def agent_names(sample: Snapshot) -> str:
    names = [peer.id for peer in sample.peers[:NAMES_SHOWN_MAX]]
    more = sample.peers_total - len(names)
    return ", ".join([*names, f"{more} more"] if names and more else names)


# --- the hops, in the order of a call


def diagnose(server: RunningServer, report: Callable[[DiagnosisStep], None] = lambda step: None) -> Diagnosis:
    """Tests each hop that can be tested without an installation; stops at the first broken one."""
    return run_steps([(hop, name, partial(check, server)) for hop, name, check in _STEPS], report)


def check(server: RunningServer) -> list[CheckResult]:
    """Runs the same tests without a dial, all of them if the server answers."""
    answers = run({"server-answers": _answers}, server)
    rest = {name: each for _, name, each in _STEPS[1:] if each is not _dial}
    if answers[0].verdict is CheckVerdict.FAIL:
        return [*answers, *(not_run("the server does not answer", name) for name in rest)]
    return [*answers, *run(rest, server)]


def _answers(server: RunningServer) -> CheckResult:
    try:
        sample = server.sample
    except NoAnswerError as error:
        return failed(f"{error.subject}: {error.args[0]}", START)
    version = f" {sample.version}" if sample.version else ""
    since = f", up {duration(sample.uptime_seconds)}" if sample.uptime_seconds is not None else ""
    note = f"; {sample.note}" if sample.note else ""
    return passed(f"{server.url}: {sample.program}{version}{since}{note}")


def _certificates(server: RunningServer) -> CheckResult:
    rows, ends = server.sample.certificates, expiry(server.sample)
    if ends is None:
        return not_run("the server does not show its certificates")
    shown = f"{ends:%Y-%m-%dT%H:%M:%SZ}"
    left = (ends - server.now).total_seconds()
    if left <= 0:
        return failed(f"a certificate expired at {shown}: agents cannot connect", RENEW)
    stale = [f"{row.title} not reloaded: {row.reload_error}" for row in rows if row.reload_error]
    if stale:
        return warned("; ".join(stale), "fix the file; the server tries again by itself")
    if left < CERTIFICATE_WARNING_SECONDS:
        return warned(f"a certificate expires soon, at {shown}", RENEW)
    return passed(f"until {shown}")


def _agents(server: RunningServer) -> CheckResult:
    sample = server.sample
    if not sample.peers_total:
        port = f" --proxy-server-port={sample.agent_port}" if sample.agent_port else ""
        fix = (
            f"start proxy-agent with --proxy-server-host=ADDRESS{port}; if it runs, its log has the reason "
            "(`server not reached`), and the server's log too (`agent refused`); from its machine, "
            f"`bootbridge doctor --from-node ADDRESS:{sample.agent_port or 'PORT'}` tests the port"
        )
        return failed("no agent is connected", fix)
    names = agent_names(sample)
    text = f"{counted(sample.peers_total, 'agent')} connected{f': {names}' if names else ''}"
    leaving = [f"{peer.id} ({peer.state})" for peer in sample.peers if not peer.healthy]
    return warned(f"{text}; not healthy: {', '.join(leaving)}", "see their logs") if leaving else passed(text)


def _frontend(server: RunningServer) -> CheckResult:
    frontend = server.known_frontend()
    if frontend is None:
        named = f"; it names {server.sample.frontend}" if server.sample.frontend else ""
        return not_run(f"give --socket PATH, the server's --uds-name, or --frontend HOST:PORT{named}")

    async def connect() -> None:
        async with asyncio.timeout(server.dial_seconds):
            connection = await frontend.connect()
        connection.writer.close()

    try:
        asyncio.run(connect())
    except TimeoutError:
        return failed(
            f"{frontend}: timed out after {server.dial_seconds:g}s", "is another program listening?"
        )
    return passed(f"{frontend} accepts connections")


def _dial(server: RunningServer) -> CheckResult:
    frontend = server.known_frontend()
    if not server.destination or frontend is None:
        return not_run("give --to HOST:PORT to dial it" if frontend else "no frontend to dial through")

    async def dial() -> None:
        stream = await open_tunnel(frontend, server.destination, server.dial_seconds)
        await stream.close()

    try:
        asyncio.run(dial())
    except DialError as error:
        explained = explain_dial_error(server.destination, str(error))
        return failed(f"{explained.subject}: {explained.args[0]}", explained.hint)
    return passed(f"an agent connected to {server.destination}")


def _recent_dials(server: RunningServer) -> CheckResult:
    sample = server.sample
    text = f"{counted(sample.dials_succeeded, 'dial')} succeeded, {sample.dials_failed_total:,} failed"
    last = sample.recent_dials[0] if sample.recent_dials else None
    if last is None or last.succeeded:
        return passed(text)
    reason = ": ".join(filter(None, (last.hop, last.reason)))
    shown = f"{text}; the last one, to {last.destination}: {reason}"
    return warned(shown, f"`bootbridge top {server.url}` shows all of them")


_STEPS: tuple[tuple[Hop, str, Callable[[RunningServer], CheckResult]], ...] = (
    (Hop.SERVER, "server-answers", _answers),
    (Hop.SERVER, "certificates", _certificates),
    (Hop.SOCKET, "frontend", _frontend),
    (Hop.CONNECTION, "agents-connected", _agents),
    (Hop.DESTINATION, "recent-dials", _recent_dials),
    (Hop.DESTINATION, "dial", _dial),
)
