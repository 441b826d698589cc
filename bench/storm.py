"""Kills a server under connected agents, restarts it, and measures until all agents are connected again.

    python bench/storm.py [--servers ours,go] [--agents 200,1000,3000] [--mode http-connect]
                          [--key rsa-2048] [--rounds N]

The agents are real agent streams, each over mTLS with its own id, in one Go process. They reconnect as the Go
agent does: after 1 s, then ×1.5 up to 10 s, each plus up to 10 % jitter. A caller dials through the server
meanwhile. Our server and the Go server take turns.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from generator import Entry, Generator, build_peers, next_line, peers_directory
from growth import counts, raise_file_limit
from pairs import (
    OURS_COMPILED,
    ROOT,
    BenchError,
    Certificates,
    Implementation,
    Process,
    Processes,
    Server,
    make_certificates,
    processes,
    start_server,
)

from bootbridge.trust.authority import KeyKind

AGENTS = (200, 1_000, 3_000)
# Shorter than the agents' first wait, so that every server listens again before they dial.
DOWN_SECONDS = 0.5
QUIET_SECONDS = 2.0


@dataclass(frozen=True)
class Storm:
    """What one restart cost. Seconds count from the start of the new process."""

    server: str
    agents: int
    listening_seconds: float
    first_agent_seconds: float
    all_back_seconds: float
    connects_per_second: float
    cpu_seconds: float
    cpu_ms_per_agent: float
    rss_peak_mib: float
    attempts: int
    failed: int
    caller_p50_ms: float
    caller_p99_ms: float
    caller_failed: int
    quiet_p50_ms: float
    quiet_p99_ms: float


class Storms:
    """The servers under test, one restart at a time."""

    def __init__(self, options: argparse.Namespace, children: Processes) -> None:
        self.options = options
        self.children = children
        self.generator = Generator(children)
        self.certs: Certificates = make_certificates(children.directory, options.key)

    def run(self) -> list[Storm]:
        taken = []
        for agents in self.options.agents:
            for number in range(self.options.rounds):
                for name in self.options.servers:
                    print(f"{name}: {agents} agents, round {number + 1} ...", flush=True)
                    taken.append(self.storm(name, agents))
                    print_storm(taken[-1])
        return taken

    def storm(self, name: str, agents: int) -> Storm:
        kind = Implementation(name, getattr(self.options, name))
        server = start_server(self.children, kind, f"{name} {agents}", self.options.mode, self.certs)
        fleet: Process | None = None
        try:
            address = f"127.0.0.1:{server.agent_port}"
            fleet, _ = self.generator.fleet(address, self.certs.of_agents(), agents)
            self.children.kill(server.process)
            time.sleep(DOWN_SECONDS)
            server = server.restarted(self.children)
            return self._measure(server, fleet, name, agents)
        finally:
            if fleet is not None:
                self.children.kill(fleet)
            if server.process in self.children.running:
                self.children.kill(server.process)

    def _measure(self, server: Server, fleet: Process, name: str, agents: int) -> Storm:
        began = time.monotonic()
        server.wait_for("/healthz", fleet)
        listening = time.monotonic() - began
        server.wait_for("/readyz", fleet)
        first = time.monotonic() - began
        entry = Entry(self.options.mode, server.uds)
        caller = self.generator.caller(entry)
        state = next_line(fleet)
        all_back = time.monotonic() - began
        cpu = server.process.cpu_seconds()
        during = self.generator.finish(caller)
        caller = self.generator.caller(entry)
        time.sleep(QUIET_SECONDS)
        quiet = self.generator.finish(caller)
        return Storm(
            server=name,
            agents=agents,
            listening_seconds=listening,
            first_agent_seconds=first,
            all_back_seconds=all_back,
            connects_per_second=agents / max(all_back - listening, 0.001),
            cpu_seconds=cpu,
            cpu_ms_per_agent=cpu / agents * 1e3,
            rss_peak_mib=server.process.peak_mib(),
            attempts=state["attempts"],
            failed=state["failed"],
            caller_p50_ms=during["p50_us"] / 1e3,
            caller_p99_ms=during["p99_us"] / 1e3,
            caller_failed=during["failed"],
            quiet_p50_ms=quiet["p50_us"] / 1e3,
            quiet_p99_ms=quiet["p99_us"] / 1e3,
        )


# --- output -------------------------------------------------------------------------


def print_storm(storm: Storm) -> None:
    print(
        f"    all back after {storm.all_back_seconds:.2f} s, CPU {storm.cpu_seconds:.2f} s,"
        f" {storm.failed} of {storm.attempts} attempts failed, caller p99 {storm.caller_p99_ms:.1f} ms"
        f" ({storm.caller_failed} failed), quiet {storm.quiet_p99_ms:.1f} ms",
        flush=True,
    )


def print_table(taken: list[Storm]) -> None:
    print(
        f"\n{'server':8}{'agents':>8}{'listening':>11}{'first back':>12}{'all back':>10}{'connects/s':>12}"
        f"{'CPU s':>8}{'ms each':>9}{'RSS peak':>10}{'caller p50':>12}{'p99 ms':>9}"
        f"{'quiet p50':>11}{'p99 ms':>9}"
    )
    for server, agents in dict.fromkeys((storm.server, storm.agents) for storm in taken):
        rounds = [storm for storm in taken if (storm.server, storm.agents) == (server, agents)]

        def median(field: str, rounds: list[Storm] = rounds) -> float:
            return statistics.median(getattr(storm, field) for storm in rounds)

        print(
            f"{server:8}{agents:8,}{median('listening_seconds'):10.2f}s{median('first_agent_seconds'):11.2f}s"
            f"{median('all_back_seconds'):9.2f}s{median('connects_per_second'):12.0f}"
            f"{median('cpu_seconds'):8.2f}{median('cpu_ms_per_agent'):9.2f}{median('rss_peak_mib'):10.0f}"
            f"{median('caller_p50_ms'):12.2f}{median('caller_p99_ms'):9.2f}"
            f"{median('quiet_p50_ms'):11.2f}{median('quiet_p99_ms'):9.2f}"
        )


# --- command line -------------------------------------------------------------------


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--servers", type=lambda text: text.split(","), default=["ours", "go"], help="ours, go"
    )
    parser.add_argument("--mode", choices=("http-connect", "grpc"), default="http-connect")
    parser.add_argument(
        "--key",
        choices=get_args(KeyKind),
        default="rsa-2048",
        help="key type of server's and agents' certificates",
    )
    parser.add_argument("--agents", type=counts, default=list(AGENTS), help="agents connected at the restart")
    parser.add_argument("--rounds", type=int, default=3, help="restarts of every size; figures are medians")
    parser.add_argument("--ours", type=Path, default=OURS_COMPILED, help="directory of our commands")
    parser.add_argument("--go", type=Path, default=peers_directory(), help="directory of the Go commands")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-storm.json")
    options = parser.parse_args()
    if unknown := set(options.servers) - {"ours", "go"}:
        parser.error(f"--servers: {', '.join(unknown)}: choose from ours, go")
    return options


def main() -> int:
    options = parse_options()
    build_peers("load", *(("proxy-server",) if "go" in options.servers else ()))
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, processes(Path(directory)) as children:
        try:
            raise_file_limit(2 * max(options.agents) + 1_000)
            taken = Storms(options, children).run()
        except (BenchError, subprocess.SubprocessError) as error:
            print(f"bench-storm: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("bench-storm: interrupted; all processes are ended", file=sys.stderr)
            return 130
    print_table(taken)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps([asdict(storm) for storm in taken], indent=1) + "\n")
    print(f"\nwritten: {options.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
