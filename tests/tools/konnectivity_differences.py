"""Writes the table of what differs from Konnectivity's Go programs into docs/migration.md.

python -m tests.tools.konnectivity_differences --write

The flags come from the help pages of all four programs, the metrics from their /metrics after one connection
and one failed dial. Needs the Go programs (`make peers`).
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bootbridge.cli.agent_flags import FLAGS as AGENT_FLAGS
from bootbridge.cli.pflags import FlagSet
from bootbridge.cli.server_flags import FLAGS as SERVER_FLAGS
from tests.support.help_pages import (
    KLOG_KINDS,
    Shown,
    flags_of_ours,
    flags_of_the_original,
    original,
)
from tests.support.process_endpoints import Endpoint, echo
from tests.support.process_program import ROOT, free_port
from tests.support.process_tunnels import RefusedDialError, dial, receive
from tests.support.tunnel_programs import Pairing, Programs
from tests.tools.generated_section import replaced

DOCUMENT = ROOT / "docs" / "migration.md"
BEGIN, END = "<!-- differences: begin -->\n", "<!-- differences: end -->\n"
FLAGS = {"proxy-server": SERVER_FLAGS, "proxy-agent": AGENT_FLAGS}
ABSENT, WITHOUT_EFFECT = "–", "Accepted, without effect"
# Each process computes its own.
_RANDOM_DEFAULTS = {"server-id", "agent-id"}
_NOT_OF_THE_PROGRAM = {"help", "version"}
_METRIC = re.compile(r"^# HELP (\w+) (.*)\n# TYPE \w+ (\w+)$", re.MULTILINE)
_PREFIX = "konnectivity_network_proxy_"


@dataclass(frozen=True)
class Difference:
    program: str
    what: str
    theirs: str
    ours: str
    meaning: str

    def row(self) -> str:
        cells = (self.program, self.what, self.theirs, self.ours, self.meaning.replace("|", "\\|"))
        return f"| {' | '.join(cells)} |"


# --- flags


def flag_differences(program: str) -> Iterator[Difference]:
    theirs, ours = flags_of_the_original(program), flags_of_ours(program)
    for name in sorted((theirs.keys() | ours.keys()) - _NOT_OF_THE_PROGRAM):
        their, our = theirs.get(name), ours.get(name)
        if our is None:
            yield _hidden(program, name, their, FLAGS[program])
        elif their is None or _differs(their, our):
            yield Difference(program, f"`--{name}`", _value(their), _value(our), _first_sentence(our.help))


def _differs(their: Shown, our: Shown) -> bool:
    same_kind = KLOG_KINDS.get(their.kind, their.kind) == our.kind
    # log-backtrace-at shows its unset value as ":0".
    same_default = their.name in _RANDOM_DEFAULTS or their.default.replace(":0", "") == our.default
    return not (same_kind and same_default) or our.help.startswith(WITHOUT_EFFECT)


def _hidden(program: str, name: str, their: Shown | None, flags: FlagSet) -> Difference:
    """A flag that our page does not show: accepted and deprecated."""
    advice = next(flag.deprecated for flag in flags if flag.name == name)
    return Difference(program, f"`--{name}`", _value(their), "deprecated", f"{advice.capitalize()}.")


def _value(flag: Shown | None) -> str:
    """Returns type and default of a flag."""
    if flag is None:
        return ABSENT
    kind = flag.kind or "bool"
    return f"{kind}, `{flag.default}`" if flag.default else kind


def _first_sentence(text: str) -> str:
    return re.split(r"\.(?= |$)", text, maxsplit=1)[0] + "."


def same_flags(program: str) -> int:
    """Returns how many flags have the same name, type and default in both."""
    differing = {each.what for each in flag_differences(program)}
    names = flags_of_the_original(program).keys() & flags_of_ours(program).keys() - _NOT_OF_THE_PROGRAM
    return len([name for name in names if f"`--{name}`" not in differing])


# --- metrics


@dataclass(frozen=True)
class Metric:
    name: str
    kind: str
    help: str


@cache
def metrics(kind: str) -> dict[str, dict[str, Metric]]:
    """Returns the metrics of a running pair, by program and name."""
    found: dict[str, dict[str, Metric]] = {"proxy-server": {}, "proxy-agent": {}}
    endpoint = Endpoint(echo)
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(Path(folder))
        try:
            for mode in ("http-connect", "grpc"):
                server, agent = programs.pair(Pairing(kind, kind), mode)
                tunnel = dial(server, endpoint.address)
                tunnel.send(b"hello")
                assert receive(tunnel, 5) == b"hello"
                try:
                    dial(server, f"127.0.0.1:{free_port()}")
                except RefusedDialError:
                    pass
                for program, port in (("proxy-server", server.health), ("proxy-agent", agent.health)):
                    page = port.get("/metrics")[1]
                    found[program] |= {name: Metric(name, *rest) for name, *rest in _metrics(page)}
                tunnel.close()
        finally:
            programs.close()
            endpoint.close()
    return found


def _metrics(page: str) -> Iterator[tuple[str, str, str]]:
    for name, help, kind in _METRIC.findall(page):
        yield name, kind, help


@cache
def _program_text(program: str) -> bytes:
    return Path(original(program)).read_bytes()


def _is_in_the_original(program: str, name: str) -> bool:
    """Whether Konnectivity has a metric: a metric with labels is on its page only after an event."""
    short = name.removeprefix(f"{_PREFIX}{program.removeprefix('proxy-')}_")
    return name in metrics("go")[program] or short.encode() in _program_text(program)


def metric_differences(program: str) -> Iterator[Difference]:
    theirs, ours = metrics("go")[program], metrics("ours")[program]
    for name, metric in sorted(theirs.items()):
        # Which ones there are depends on the release of Go.
        if name not in ours and not name.startswith("go_"):
            yield Difference(program, f"`{name}`", metric.kind, ABSENT, "Not counted.")
    yield Difference(program, "`go_…`", "several", ABSENT, "Of Go's runtime.")
    for name, metric in sorted(ours.items()):
        if not _is_in_the_original(program, name):
            short = f"`…_{name.removeprefix(_PREFIX)}`"
            yield Difference(program, short, ABSENT, metric.kind, _first_sentence(metric.help))


# --- the document


def version() -> str:
    """Returns Konnectivity's version that is compared with."""
    modules = (ROOT / "peers" / "konnectivity" / "go.mod").read_text()
    found = re.search(r"^\s*sigs\.k8s\.io/apiserver-network-proxy (\S+)", modules, re.MULTILINE)
    assert found
    return found[1]


def table() -> str:
    same = " and ".join(f"{same_flags(program)} flags of `{program}`" for program in FLAGS)
    shared = sum(_is_in_the_original(program, name) for program in FLAGS for name in metrics("ours")[program])
    lines = [
        f"Compared with Konnectivity {version()}. The same in both: {same}, with type and default, "
        f"and {shared} metrics.",
        "",
        "| program | flag or metric | Konnectivity | Bootbridge | in Bootbridge |",
        "|---|---|---|---|---|",
    ]
    for program in FLAGS:
        lines += [each.row() for each in (*flag_differences(program), *metric_differences(program))]
    return "\n".join(lines) + "\n"


def updated(text: str) -> str:
    """Returns the document with the table of the programs as they are."""
    return replaced(text, BEGIN, END, table())


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    DOCUMENT.write_text(updated(DOCUMENT.read_text()))
