"""Measures a caller, the health port and the server's memory while one port is flooded.

    python bench/attacks.py [--pairs ours,go] [--floods rst,ping] [--mode http-connect] [--seconds S]

Each flood runs against a fresh pair, first ours, then Go's. The flood is tests/attacks/floods.py in another
process, with lower priority: a real attacker does not use the server's processors.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from generator import Entry, Generator, build_peers, peers_directory
from pairs import (
    OURS_COMPILED,
    ROOT,
    BenchError,
    Certificates,
    Extra,
    Implementation,
    Pair,
    Process,
    Processes,
    make_certificates,
    processes,
    start_pair,
)
from report import GO, OURS

# Without a client certificate, then with an agent's.
NETWORK_FLOODS = ("silent", "hellos", "handshakes", "health-idle")
AGENT_FLOODS = (
    "rst", "ping", "settings", "settings-large", "window-update", "priority", "empty-data", "continuation",
    "identifiers", "late-data", "other-methods", "small-frames", "small-packets",
)  # fmt: skip
FLOODS = NETWORK_FLOODS + AGENT_FLOODS
# Silent connections exhaust the descriptors of a server that has only these.
FEW_DESCRIPTORS = ("prlimit", "--nofile=256:256")
# The flooding agent has no identifiers: dials by destination go to the real agent, so that the figures show
# what the flood costs and not that a silent agent was selected.
ROUTING = Extra(
    server_flags=("--proxy-strategies=destHost",), agent_flags=("--agent-identifiers=ipv4=127.0.0.1",)
)
PROBE_TIMEOUT_SECONDS = 1.0
PROBE_PAUSE_SECONDS = 0.2
FLOOD_START_SECONDS = 0.7
TARGET_SLOWDOWN = 3.0


@dataclass(frozen=True)
class Flooded:
    """One pair under one flood."""

    pair: str
    flood: str
    quiet_p99_ms: float
    flooded_p99_ms: float
    calls: int
    calls_failed: int
    probes: int
    probes_failed: int
    rss_before_mib: float
    rss_peak_mib: float
    cpu_percent: float
    sent: dict[str, object] = field(default_factory=dict)

    @property
    def slowdown(self) -> float:
        return self.flooded_p99_ms / self.quiet_p99_ms


class Probes:
    """GET /healthz as a kubelet does it, in a thread, until stopped."""

    def __init__(self, port: int) -> None:
        self.sent = 0
        self.failed = 0
        self._url = f"http://127.0.0.1:{port}/healthz"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(PROBE_PAUSE_SECONDS):
            self.sent += 1
            try:
                urllib.request.urlopen(self._url, timeout=PROBE_TIMEOUT_SECONDS).close()
            except (urllib.error.URLError, OSError):
                self.failed += 1


class Attacks:
    """The pairs under test, one flood at a time."""

    def __init__(self, options: argparse.Namespace, children: Processes) -> None:
        self.options = options
        self.children = children
        self.generator = Generator(children)
        self.certs: Certificates = make_certificates(children.directory)

    def run(self) -> list[Flooded]:
        taken = []
        for flood in self.options.floods:
            for name in self.options.pairs:
                taken.append(self.attack(name, flood))
                print_flooded(taken[-1])
        return taken

    def attack(self, name: str, flood: str) -> Flooded:
        kind = Implementation(name, getattr(self.options, name))
        extra = replace(ROUTING, wrapper=FEW_DESCRIPTORS if flood == "silent" else ())
        pair = start_pair(self.children, name, (kind, kind), self.options.mode, self.certs, extra)
        try:
            return self._measure(pair, flood)
        finally:
            self.children.kill(pair.agent)
            self.children.kill(pair.server.process)

    def _measure(self, pair: Pair, flood: str) -> Flooded:
        entry = Entry(self.options.mode, pair.server.uds)
        server = pair.server.process
        self._call(entry)  # fills caches and opens windows
        quiet = self._call(entry)
        rss_before = server.rss_mib()
        attacker = self._start(pair, flood)
        time.sleep(FLOOD_START_SECONDS)
        probes = Probes(pair.server.health_port)
        cpu_before, began = server.cpu_seconds(), time.monotonic()
        during = self._call(entry)
        cpu = (server.cpu_seconds() - cpu_before) / (time.monotonic() - began)
        probes.stop()
        pair.check_alive()
        peak = server.peak_mib()
        sent = self._report(attacker)
        return Flooded(
            pair=pair.name,
            flood=flood,
            quiet_p99_ms=quiet["p99_us"] / 1e3,
            flooded_p99_ms=during["p99_us"] / 1e3,
            calls=during["count"],
            calls_failed=during["failed"],
            probes=probes.sent,
            probes_failed=probes.failed,
            rss_before_mib=rss_before,
            rss_peak_mib=peak,
            cpu_percent=cpu * 100,
            sent=sent,
        )

    def _call(self, entry: Entry) -> dict[str, float]:
        caller = self.generator.caller(entry)
        time.sleep(self.options.seconds)
        return self.generator.finish(caller)

    def _start(self, pair: Pair, flood: str) -> Process:
        port = pair.server.health_port if flood == "health-idle" else pair.server.agent_port
        argv = ["nice", "-n", "10", sys.executable, "-m", "tests.attacks.floods", flood, f"localhost:{port}"]
        argv += [f"--seconds={self.options.seconds + FLOOD_START_SECONDS + 1}"]
        if flood in ("hellos", "handshakes", *AGENT_FLOODS):
            argv += [f"--ca={self.certs.path('ca.crt')}"]
        if flood in AGENT_FLOODS:
            argv += [f"--cert={self.certs.path('agent.crt')}", f"--key={self.certs.path('agent.key')}"]
        return self.children.start(f"flood {flood}", argv, stdout=subprocess.PIPE)

    def _report(self, attacker: Process) -> dict[str, object]:
        """Waits for the end of the flood; a flood that failed would make every figure look good."""
        output, _ = attacker.popen.communicate(timeout=60)
        if attacker.popen.returncode or not output:
            raise BenchError(f"{attacker.title}: {attacker.log.read_text()[-300:].strip() or 'no output'}")
        self.children.kill(attacker)
        report: dict[str, object] = json.loads(output)
        return report


# --- output -------------------------------------------------------------------------


def print_flooded(flooded: Flooded) -> None:
    print(
        f"{flooded.flood:15}{flooded.pair:6} p99 {flooded.quiet_p99_ms:.2f} → {flooded.flooded_p99_ms:.2f} ms"
        f" ({flooded.slowdown:.1f}×), {flooded.calls_failed} of {flooded.calls} calls and"
        f" {flooded.probes_failed} of {flooded.probes} probes failed,"
        f" RSS {flooded.rss_before_mib:.0f} → {flooded.rss_peak_mib:.0f} MiB,"
        f" CPU {flooded.cpu_percent:.0f} %",
        flush=True,
    )


def print_table(taken: list[Flooded]) -> None:
    print(
        "\n| flood | server | p99 quiet, ms | p99 flooded, ms | slowdown | calls failed | probes failed |"
        " RSS before, MiB | RSS peak, MiB | CPU | connections closed by the server |\n" + "|---" * 11 + "|"
    )
    for flooded in taken:
        print(
            f"| {flooded.flood} | {flooded.pair} |"
            f" {flooded.quiet_p99_ms:.2f} | {flooded.flooded_p99_ms:.2f} |"
            f" {flooded.slowdown:.1f}× | {flooded.calls_failed} of {flooded.calls} |"
            f" {flooded.probes_failed} of {flooded.probes} | {flooded.rss_before_mib:.0f} |"
            f" {flooded.rss_peak_mib:.0f} | {flooded.cpu_percent:.0f} % |"
            f" {flooded.sent['closed_by_server']} of {flooded.sent['connections']} |"
        )
    texts = [
        f"{one.flood} {one.slowdown:.1f}×"
        for one in taken
        if one.pair == OURS and one.slowdown > TARGET_SLOWDOWN
    ]
    print(f"\ntarget: ours below {TARGET_SLOWDOWN:g}× under each flood: " + (", ".join(texts) or "met"))


# --- command line -------------------------------------------------------------------


def names(allowed: tuple[str, ...]) -> "argparse._ActionType":
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in allowed]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(allowed)}")
        return chosen

    return parse


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=names((OURS, GO)), default=[OURS, GO], help="ours, go")
    parser.add_argument("--floods", type=names(FLOODS), default=list(FLOODS), help=", ".join(FLOODS))
    parser.add_argument("--mode", choices=("http-connect", "grpc"), default="http-connect")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--ours", type=Path, default=OURS_COMPILED, help="directory of our commands")
    parser.add_argument("--go", type=Path, default=peers_directory(), help="directory of the Go commands")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-attacks.json")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    build_peers("load", "proxy-server", "proxy-agent")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, processes(Path(directory)) as children:
        try:
            taken = Attacks(options, children).run()
        except (BenchError, subprocess.SubprocessError) as error:
            print(f"bench-attacks: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("bench-attacks: interrupted; all processes are ended", file=sys.stderr)
            return 130
    print_table(taken)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps([asdict(one) for one in taken], indent=1) + "\n")
    print(f"\nwritten: {options.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
