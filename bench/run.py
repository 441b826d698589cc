"""Compares our pair, the Go pair, both mixed pairs and a pair of HAProxy processes under the same load.

    python bench/run.py [--quick] [--rounds N] [--seconds S] [--pairs A,B] [--modes M] [--only PATTERN]

All pairs run at once and take turns, scenario by scenario, so that other load on
the machine affects all of them alike; figures are medians over the rounds.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import report
from floor import Floor, start_floor
from generator import Entry, Generator, build_peers, peers_directory
from pairs import (
    OURS_COMPILED,
    ROOT,
    BenchError,
    Certificates,
    Implementation,
    Pair,
    Processes,
    make_certificates,
    processes,
    start_pair,
)
from report import DIRECT, FLOOR, GO, MODES, OUR_AGENT, OUR_SERVER, OURS, PAIR_NAMES, Figures

IDLE_TUNNELS = 1000
# Allocators and collectors get this long to give memory back before it is read.
REST_SECONDS = 2.0
TARGET_OF = {"down": "source", "up": "sink", "both": "duplex"}


@dataclass(frozen=True)
class Scenario:
    """One kind of load, and the figures it yields (without the mode, their last part)."""

    kind: str
    conns: int
    figures: tuple[str, ...]
    direction: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.direction, str(self.conns))))


def scenarios() -> list[Scenario]:
    pings = [Scenario("ping", n, (f"latency.p50.{n}", f"latency.p99.{n}", f"requests.{n}")) for n in (1, 16)]
    connects = [Scenario("connect", n, (f"connections.{n}",)) for n in (1, 8)]
    bulks = [
        Scenario("bulk", n, (f"bulk.{direction}.{n}", f"cpu.{direction}.{n}"), direction)
        for direction in TARGET_OF
        for n in (1, 8)
    ]
    return pings + connects + bulks


def rss_figures(moment: str) -> tuple[str, str]:
    return f"rss.{moment}.server", f"rss.{moment}.agent"


STALL_FIGURES = ("stall.normal.p50", "stall.normal.p99", "stall.p50", "stall.p99", "stall.slowdown")


class Bench:
    """One run: the pairs that are up, and the figures taken from them."""

    def __init__(self, options: argparse.Namespace, children: Processes) -> None:
        self.options = options
        self.children = children
        self.figures = Figures()
        self.generator = Generator(children)
        self.certs: Certificates = make_certificates(children.directory)
        self.pairs: dict[tuple[str, str], Pair] = {}
        self.floor: Floor | None = None
        ours, go = Implementation(OURS, options.ours), Implementation(GO, options.go)
        self._kinds = {OURS: (ours, ours), GO: (go, go), OUR_SERVER: (ours, go), OUR_AGENT: (go, ours)}

    # -- pairs

    def start_pairs(self) -> None:
        for mode in self.options.modes:
            for name in self.options.pairs:
                self._start(name, mode)
        if self.options.floor:
            targets = {name: self.generator.ports[name] for name in ("echo", *TARGET_OF.values())}
            self.floor = start_floor(self.children, self.certs, targets)

    def _start(self, name: str, mode: str) -> None:
        self.pairs[name, mode] = start_pair(self.children, name, self._kinds[name], mode, self.certs)

    def _restart(self, name: str, mode: str) -> None:
        pair = self.pairs.pop((name, mode))
        self.children.kill(pair.agent)
        self.children.kill(pair.server.process)
        self._start(name, mode)

    def turns(self, round_number: int) -> Iterator[tuple[str, str, Pair]]:
        """Every pair once; who begins changes from round to round."""
        for mode in self.options.modes:
            names = self.options.pairs
            shift = round_number % len(names)
            for name in names[shift:] + names[:shift]:
                yield name, mode, self.pairs[name, mode]

    # -- what to measure

    def wanted(self, *names: str) -> bool:
        """`--only bulk.down.1` means the figure and all below it; wildcards work too."""
        pattern = self.options.only
        full = [f"{name}.{mode}" for name in names for mode in self.options.modes]
        return not pattern or any(
            name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern) for name in full
        )

    def run(self) -> None:
        self.start_pairs()
        self.measure_idle()
        self.measure_tunnels()
        chosen = [scenario for scenario in scenarios() if self.wanted(*scenario.figures)]
        for number in range(self.options.rounds):
            for scenario in chosen:
                print(f"round {number + 1}/{self.options.rounds}: {scenario}", flush=True)
                self.measure_direct(scenario)
                self.measure_floor(scenario)
                for name, mode, pair in self.turns(number):
                    self.guarded(name, mode, lambda s=scenario, p=pair, m=mode: self.measure(s, p, m))
        if chosen:
            self.measure_after_load()
        self.measure_stalls()

    def guarded(self, name: str, mode: str, measure: Any) -> None:
        """A pair that fails or leaves connections behind is replaced by a fresh one."""
        try:
            settled = measure()
            self.pairs[name, mode].check_alive()
        except BenchError as error:
            self.figures.fail(f"{name} {mode}: {error}")
            settled = False
        if not settled:
            self.figures.note(f"{name} {mode}: connections were left behind; the pair was started afresh")
            self._restart(name, mode)

    # -- scenarios

    def measure(self, scenario: Scenario, pair: Pair, mode: str) -> bool:
        cpu_before = pair.cpu_seconds()
        result = self._load(scenario, Entry(mode, pair.server.uds))
        if nothing_moved(result):
            raise BenchError(f"{scenario}: nothing arrived during the measurement")
        cpu = pair.cpu_seconds() - cpu_before
        for name, unit, value in figures_of(scenario, result, cpu):
            self.figures.add(f"{name}.{mode}", unit, pair.name, value)
        self._print(pair.name, mode, figures_of(scenario, result, cpu))
        if result.get("failed"):
            self.figures.fail(
                f"{pair.name} {mode}: {scenario}: {result['failed']} failed: {result['reason']}"
            )
        return bool(result["settled"])

    def measure_direct(self, scenario: Scenario) -> None:
        """The same load without any tunnel, for context."""
        result = self._load(scenario, Entry(DIRECT))
        for name, _, value in figures_of(scenario, result, None):
            self.figures.add_context(name, DIRECT, value)
        self._print(DIRECT, "", figures_of(scenario, result, None))

    def measure_floor(self, scenario: Scenario) -> None:
        if self.floor is None:
            return
        cpu_before = self.floor.cpu_seconds()
        result = self._load(scenario, Entry("socket", str(self.floor.directory)))
        cpu = self.floor.cpu_seconds() - cpu_before
        self.floor.check_alive()
        self._add_floor(figures_of(scenario, result, cpu))

    def _add_floor(self, values: list[tuple[str, str, float]]) -> None:
        for name, _, value in values:
            self.figures.add_context(name, FLOOR, value)
        self._print(FLOOR, "", values)

    def _load(self, scenario: Scenario, entry: Entry) -> dict[str, Any]:
        flags = [f"--conns={scenario.conns}", f"--seconds={self.options.seconds}"]
        if scenario.direction:
            flags.append(f"--direction={scenario.direction}")
        return self.generator.run(scenario.kind, entry, TARGET_OF.get(scenario.direction, "echo"), *flags)

    def _print(self, pair: str, mode: str, values: list[tuple[str, str, float]]) -> None:
        text = "  ".join(f"{name} {value:,.4g} {unit}" for name, unit, value in values)
        print(f"    {pair:20} {mode:13} {text}", flush=True)

    # -- memory

    def measure_idle(self) -> None:
        if self.wanted(*rss_figures("idle")):
            print("memory: idle", flush=True)
            time.sleep(REST_SECONDS)
            for _, mode, pair in self.turns(0):
                self._take_rss("idle", pair, mode)
            self._take_floor_rss("idle")

    def measure_tunnels(self) -> None:
        if not self.wanted(*rss_figures("tunnels")):
            return
        print(f"memory: {IDLE_TUNNELS} idle tunnels", flush=True)
        for name, mode, pair in self.turns(0):
            self.guarded(name, mode, lambda p=pair, m=mode: self._hold_tunnels(p, m))
        if self.floor is not None:
            holder, _ = self.generator.hold(Entry("socket", str(self.floor.directory)), IDLE_TUNNELS)
            try:
                time.sleep(REST_SECONDS / 2)
                self._take_floor_rss("tunnels")
            finally:
                self.generator.release(holder)

    def _hold_tunnels(self, pair: Pair, mode: str) -> bool:
        holder, _ = self.generator.hold(Entry(mode, pair.server.uds), IDLE_TUNNELS)
        try:
            time.sleep(REST_SECONDS / 2)
            self._take_rss("tunnels", pair, mode)
        finally:
            self.generator.release(holder)
        return True

    def measure_after_load(self) -> None:
        if self.wanted(*rss_figures("load"), *rss_figures("peak")):
            print("memory: after load", flush=True)
            time.sleep(REST_SECONDS)
            for _, mode, pair in self.turns(0):
                self._take_rss("load", pair, mode)
                self._add_rss("peak", pair, mode, pair.server.process.peak_mib(), pair.agent.peak_mib())
            self._take_floor_rss("load")

    def _take_rss(self, moment: str, pair: Pair, mode: str) -> None:
        self._add_rss(moment, pair, mode, pair.server.process.rss_mib(), pair.agent.rss_mib())

    def _take_floor_rss(self, moment: str) -> None:
        if self.floor is not None:
            sizes = (self.floor.near.rss_mib(), self.floor.far.rss_mib())
            self._add_floor(list(zip(rss_figures(moment), ("MiB", "MiB"), sizes, strict=True)))

    def _add_rss(self, moment: str, pair: Pair, mode: str, server: float, agent: float) -> None:
        values = list(zip(rss_figures(moment), ("MiB", "MiB"), (server, agent), strict=True))
        for name, unit, value in values:
            self.figures.add(f"{name}.{mode}", unit, pair.name, value)
        self._print(pair.name, mode, values)

    # -- the stalled reader

    def measure_stalls(self) -> None:
        if not self.wanted(*STALL_FIGURES):
            return
        for number in range(self.options.rounds):
            print(f"round {number + 1}/{self.options.rounds}: one reader stalls", flush=True)
            for name, mode, pair in self.turns(number):
                self.guarded(name, mode, lambda p=pair, m=mode: self._stall(p, m))
            if self.floor is not None:
                self._add_floor(self._run_stall(Entry("socket", str(self.floor.directory)))[1])

    def _run_stall(self, entry: Entry) -> tuple[dict[str, Any], list[tuple[str, str, float]]]:
        seconds, limit = max(1.5, self.options.seconds), "1s" if self.options.quick else "3s"
        source = self.generator.ports["source"]
        flags = [f"--source={source}", f"--seconds={seconds}", f"--limit={limit}"]
        result = self.generator.run("stall", entry, "echo", *flags)
        normal, stalled = result["normal"], result["stalled"]
        return result, [
            ("stall.normal.p50", "µs", normal["p50_us"]),
            ("stall.normal.p99", "µs", normal["p99_us"]),
            ("stall.p50", "µs", stalled["p50_us"]),
            ("stall.p99", "µs", stalled["p99_us"]),
            ("stall.slowdown", "×", stalled["p99_us"] / normal["p99_us"]),
        ]

    def _stall(self, pair: Pair, mode: str) -> bool:
        result, values = self._run_stall(Entry(mode, pair.server.uds))
        for name, unit, value in values:
            self.figures.add(f"{name}.{mode}", unit, pair.name, value)
        self._print(pair.name, mode, values[1:])
        self.figures.note(f"{pair.name} {mode}: {stall_summary(result)}")
        return bool(result["settled"])


def figures_of(scenario: Scenario, result: dict[str, Any], cpu: float | None) -> list[tuple[str, str, float]]:
    n, direction = scenario.conns, scenario.direction
    if scenario.kind == "ping":
        return [
            (f"latency.p50.{n}", "µs", result["p50_us"]),
            (f"latency.p99.{n}", "µs", result["p99_us"]),
            (f"requests.{n}", "/s", result["per_second"]),
        ]
    if scenario.kind == "connect":
        return [(f"connections.{n}", "/s", result["per_second"])]
    rate = [(f"bulk.{direction}.{n}", "MiB/s", result["mib_per_second"])]
    if cpu is None:
        return rate
    return [*rate, (f"cpu.{direction}.{n}", "s/GiB", cpu / (result["bytes_total"] / 2**30))]


def nothing_moved(result: dict[str, Any]) -> bool:
    return result.get("mib_per_second", result.get("per_second")) == 0


def stall_summary(result: dict[str, Any]) -> str:
    second = "blocked beyond the limit" if result["blocked"] else "went on"
    third = "could be opened" if result["new_connection_ms"] >= 0 else "could not be opened"
    text = f"while a reader stalled, a second connection {second}, a new one {third}"
    return f"{text}; then the reader {result['reader']}"


# --- command line -------------------------------------------------------------------


def choice(allowed: tuple[str, ...]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in allowed]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(allowed)}")
        return names

    return parse


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help="repetitions of every scenario (default 3, quick 1)")
    parser.add_argument("--seconds", type=float, help="length of one measurement (default 1.0, quick 0.4)")
    parser.add_argument(
        "--pairs", type=choice(PAIR_NAMES), default=list(PAIR_NAMES), help=", ".join(PAIR_NAMES)
    )
    parser.add_argument("--modes", type=choice(MODES), default=list(MODES), help=", ".join(MODES))
    parser.add_argument(
        "--floor",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also measure a pair of HAProxy processes",
    )
    parser.add_argument("--only", default="", help="figures to take, e.g. bulk.down.1 or rss or '*.p99.*'")
    parser.add_argument("--quick", action="store_true", help="one short round: a look, not a result")
    parser.add_argument("--ours", type=Path, default=OURS_COMPILED, help="directory of our commands")
    parser.add_argument("--go", type=Path, default=peers_directory(), help="directory of the Go commands")
    parser.add_argument("--output", type=Path, help="default build/bench.json; narrowed: bench-partial.json")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (0.4 if options.quick else 1.0)
    file_name = "bench-partial.json" if is_narrowed(options) else "bench.json"
    options.output = options.output or ROOT / "build" / file_name
    return options


def is_narrowed(options: argparse.Namespace) -> bool:
    everything = set(options.pairs) == set(PAIR_NAMES) and set(options.modes) == set(MODES)
    return bool(options.only or not options.floor or not everything)


def main() -> int:
    options = parse_options()
    build_peers("load", "proxy-server", "proxy-agent")
    began = time.monotonic()
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before the run", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, processes(Path(directory)) as children:
        try:
            bench = Bench(options, children)
            bench.run()
        except BenchError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("bench: interrupted; all processes are ended, nothing is written", file=sys.stderr)
            return 130
    report.print_table(bench.figures)
    report.print_summary(bench.figures)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    report.write(bench.figures, options.output, settings)
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if bench.figures.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
