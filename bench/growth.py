"""Shows how a server grows with its agents and its tunnels.

    python bench/growth.py [--servers ours,go] [--mode http-connect] [--agents N,N] [--tunnels N,N]

Agents are real agent streams, each over mTLS with an id of its own, in one Go process;
they really dial. Each step starts a fresh server, so that no step inherits another's memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from generator import Entry, Generator, build_peers, peers_directory
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

AGENTS = (10, 100, 1_000)
TUNNELS = (10, 100, 1_000, 10_000)
# While one of the two grows, the other stays at this.
AGENTS_STEADY = 10
TUNNELS_STEADY = 10
REST_SECONDS = 2.0


@dataclass(frozen=True)
class Step:
    """What one server cost with so many agents and tunnels."""

    server: str
    growing: str
    agents: int
    tunnels: int
    rss_mib: float
    rss_start_mib: float
    cpu_idle_percent: float
    cpu_per_agent_ms: float
    cpu_per_tunnel_ms: float
    open_seconds: float
    ping_p50_us: float
    ping_p99_us: float
    connections_per_second: float


class Growth:
    """The servers under test, one step at a time."""

    def __init__(self, options: argparse.Namespace, children: Processes) -> None:
        self.options = options
        self.children = children
        self.generator = Generator(children)
        self.certs: Certificates = make_certificates(children.directory)

    def run(self) -> list[Step]:
        sizes = [("agents", count, TUNNELS_STEADY) for count in self.options.agents]
        sizes += [("tunnels", AGENTS_STEADY, count) for count in self.options.tunnels]
        steps = []
        for growing, agents, tunnels in sizes:
            for name in self.options.servers:
                print(f"{name}: {agents} agents, {tunnels} tunnels ...", flush=True)
                steps.append(self.step(name, growing, agents, tunnels))
                print_step(steps[-1])
        return steps

    def step(self, name: str, growing: str, agents: int, tunnels: int) -> Step:
        kind = Implementation(name, getattr(self.options, name))
        server = start_server(
            self.children, kind, f"{name} {agents} {tunnels}", self.options.mode, self.certs
        )
        fleet: Process | None = None
        try:
            rss_start, cpu_start = server.process.rss_mib(), server.process.cpu_seconds()
            fleet, _ = self.generator.agents(f"127.0.0.1:{server.agent_port}", self.certs.of_agents(), agents)
            server.wait_for("/readyz", fleet)
            cpu_agents = server.process.cpu_seconds() - cpu_start
            return self._with_tunnels(server, name, growing, agents, tunnels, rss_start, cpu_agents)
        finally:
            if fleet is not None:
                self.children.kill(fleet)
            self.children.kill(server.process)

    def _with_tunnels(
        self,
        server: Server,
        name: str,
        growing: str,
        agents: int,
        tunnels: int,
        rss_start: float,
        cpu_agents: float,
    ) -> Step:
        entry = Entry(self.options.mode, server.uds)
        cpu_before = server.process.cpu_seconds()
        holder, held = self.generator.hold(entry, tunnels)
        try:
            cpu_tunnels = server.process.cpu_seconds() - cpu_before
            time.sleep(REST_SECONDS)
            cpu_rest = server.process.cpu_seconds()
            time.sleep(REST_SECONDS)
            idle_percent = (server.process.cpu_seconds() - cpu_rest) / REST_SECONDS * 100
            rss = server.process.rss_mib()
            # The tunnels stay open throughout, so there is nothing to settle: no control port.
            ping = self.generator.run_beside("ping", entry, f"--seconds={self.options.seconds}")
            connect = self.generator.run_beside("connect", entry, f"--seconds={self.options.seconds}")
        finally:
            self.generator.release(holder)
        if connect["failed"]:
            raise BenchError(
                f"{name}: {connect['failed']} failed beside {tunnels} tunnels: {connect['reason']}"
            )
        return Step(
            server=name,
            growing=growing,
            agents=agents,
            tunnels=tunnels,
            rss_mib=rss,
            rss_start_mib=rss_start,
            cpu_idle_percent=idle_percent,
            cpu_per_agent_ms=cpu_agents / agents * 1e3,
            cpu_per_tunnel_ms=cpu_tunnels / tunnels * 1e3,
            open_seconds=held["openSeconds"],
            ping_p50_us=ping["p50_us"],
            ping_p99_us=ping["p99_us"],
            connections_per_second=connect["per_second"],
        )


# --- output -------------------------------------------------------------------------


def print_step(step: Step) -> None:
    print(f"    RSS {step.rss_mib:.1f} MiB, ping p50 {step.ping_p50_us:.0f} µs", flush=True)


def print_table(steps: list[Step]) -> None:
    """Memory is given per unit too: flat figures there mean linear growth."""
    for growing in ("agents", "tunnels"):
        print(f"\ngrowing {growing}")
        print(
            f"{'server':8}{'agents':>8}{'tunnels':>9}{'RSS MiB':>9}{'KiB each':>10}{'idle CPU':>10}"
            f"{'CPU ms each':>13}{'ping p50':>10}{'p99':>9}{'connects/s':>12}"
        )
        for step in (step for step in steps if step.growing == growing):
            print(_line(step))


def _line(step: Step) -> str:
    count = step.agents if step.growing == "agents" else step.tunnels
    cpu_each = step.cpu_per_agent_ms if step.growing == "agents" else step.cpu_per_tunnel_ms
    return (
        f"{step.server:8}{step.agents:8,}{step.tunnels:9,}{step.rss_mib:9.1f}"
        f"{(step.rss_mib - step.rss_start_mib) * 1024 / count:10.1f}{step.cpu_idle_percent:9.1f}%"
        f"{cpu_each:13.2f}{step.ping_p50_us:7.0f} µs{step.ping_p99_us:6.0f} µs"
        f"{step.connections_per_second:12.0f}"
    )


# --- command line -------------------------------------------------------------------


def counts(text: str) -> list[int]:
    return [int(part.replace("_", "")) for part in text.split(",")]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--servers", type=lambda text: text.split(","), default=["ours", "go"], help="ours, go"
    )
    parser.add_argument("--mode", choices=("http-connect", "grpc"), default="http-connect")
    parser.add_argument("--agents", type=counts, default=list(AGENTS), help="steps of growing agents")
    parser.add_argument("--tunnels", type=counts, default=list(TUNNELS), help="steps of growing tunnels")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one latency measurement")
    parser.add_argument("--ours", type=Path, default=OURS_COMPILED, help="directory of our commands")
    parser.add_argument("--go", type=Path, default=peers_directory(), help="directory of the Go commands")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-growth.json")
    options = parser.parse_args()
    if unknown := set(options.servers) - {"ours", "go"}:
        parser.error(f"--servers: {', '.join(unknown)}: choose from ours, go")
    return options


def raise_file_limit(needed: int) -> None:
    """Children inherit it: a server holds one descriptor per agent and per tunnel."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BenchError(
            f"{needed} file descriptors are needed, the hard limit is {hard}: raise it with ulimit -Hn"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    options = parse_options()
    build_peers("load", *(("proxy-server",) if "go" in options.servers else ()))
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, processes(Path(directory)) as children:
        try:
            raise_file_limit(max(options.agents + options.tunnels) + 1_000)
            steps = Growth(options, children).run()
        except (BenchError, subprocess.SubprocessError) as error:
            print(f"bench-growth: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("bench-growth: interrupted; all processes are ended", file=sys.stderr)
            return 130
    print_table(steps)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps([asdict(step) for step in steps], indent=1) + "\n")
    print(f"\nwritten: {options.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
