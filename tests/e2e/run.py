"""Runs the end-to-end scenarios, several at a time: python -m tests.e2e.run [--at-once N] [SCENARIO…].

A scenario mostly waits for a kubelet or for a restarting kube-apiserver, so several run beside each other,
each in a pytest process and labs of its own. The output of each is kept in build/e2e/SCENARIO.log and printed
when it has ended. Ctrl-C ends all scenarios and waits until their labs are down. If a run is killed, the next
run removes its labs.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from bootbridge.lab import inotify
from tests.e2e import results
from tests.e2e.scenarios import SCENARIOS, LabScenario
from tests.e2e.stale_labs import stale_labs
from tests.support.lab import RESULTS, SCENARIO, missing
from tests.support.process_program import ROOT

# Enough to keep two cores busy.
AT_ONCE = 4
POLL_SECONDS = 0.5
# How often progress is printed where stdout is not a terminal.
PROGRESS_SECONDS = 30.0
# Ends a scenario that hangs; the longest takes a fifth of it.
SCENARIO_SECONDS = 1800.0
# For its labs to go down after that; the next run removes what is left.
SHUTDOWN_SECONDS = 300.0
_PYTEST = ("-m", "pytest", "-m", "e2e", "-vv", "--durations=15", "-o", "console_output_style=count")
_COUNT = re.compile(r"\[ *(\d+)/(\d+)\]")
_PASSED, _SKIPPED = (re.compile(rf"\b(\d+) {what}\b.* in [\d.]+s") for what in ("passed", "skipped"))
# If this process is killed, each scenario is interrupted and takes its labs down.
_INTERRUPTED_WITH_US = ("setpriv", "--pdeathsig=INT")


@dataclass
class ScenarioRun:
    """A scenario's pytest process, running or ended."""

    scenario: LabScenario
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    timed_out: bool = False

    @classmethod
    def start(cls, scenario: LabScenario) -> ScenarioRun:
        with _log_of(scenario).open("wb") as log:
            process = subprocess.Popen(
                [*_INTERRUPTED_WITH_US, sys.executable, *_PYTEST, *scenario.pytest_arguments],
                cwd=ROOT,
                env={**os.environ, SCENARIO: scenario.name},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches only this process, which interrupts pytest once.
                start_new_session=True,
            )
        return cls(scenario, process)

    def has_ended(self) -> bool:
        self.seconds = time.monotonic() - self.started
        if self.process.poll() is not None:
            return True
        if self.seconds > SCENARIO_SECONDS and not self.timed_out:
            self.timed_out = True
            self.process.send_signal(signal.SIGINT)
        if self.seconds > SCENARIO_SECONDS + SHUTDOWN_SECONDS:
            self.process.kill()
        return False

    @property
    def output(self) -> str:
        return _log_of(self.scenario).read_text(errors="replace")

    @property
    def progress(self) -> str:
        """Returns how many of its tests have run."""
        counts = _COUNT.findall(self.output)
        return f"{self.scenario.name} {'/'.join(counts[-1]) if counts else '…'}"

    @property
    def result(self) -> str:
        if self.process.returncode:
            return f"FAILED in {self.seconds:.0f} s{' (timed out)' if self.timed_out else ''}"
        if not _PASSED.search(self.output):
            return "NOT RUN"
        skipped = _SKIPPED.search(self.output)
        return f"passed in {self.seconds:.0f} s{f', but {skipped[1]} NOT RUN' if skipped else ''}"


def _log_of(scenario: LabScenario) -> Path:
    return RESULTS / f"{scenario.name}.log"


class ProgressLine:
    """Shows the progress: one changing line on a terminal, else a line every PROGRESS_SECONDS."""

    def __init__(self) -> None:
        self._started = self._printed = time.monotonic()
        self._live = sys.stdout.isatty()

    def show(self, running: Sequence[ScenarioRun]) -> None:
        now = time.monotonic()
        minutes, seconds = divmod(int(now - self._started), 60)
        text = f"{minutes:2}:{seconds:02}  {' · '.join(each.progress for each in running)}"
        if self._live:
            print(f"\r\x1b[K{text[: os.get_terminal_size().columns - 1]}", end="", flush=True)
        elif now - self._printed >= PROGRESS_SECONDS:
            self._printed = now
            print(text, flush=True)

    def clear(self) -> None:
        if self._live:
            print("\r\x1b[K", end="")


def run_scenarios(
    scenarios: Sequence[LabScenario], at_once: int, inotify_instances: int
) -> list[ScenarioRun]:
    """Runs scenarios, `at_once` at a time; always the first for which enough inotify instances are left."""
    waiting, running, done = list(scenarios), list[ScenarioRun](), list[ScenarioRun]()
    line = ProgressLine()

    def next_one() -> LabScenario | None:
        if not running:
            return waiting[0] if waiting else None
        if len(running) >= at_once:
            return None
        # Counted again each time: other processes of this user may hold more by now.
        reserved = sum(each.scenario.inotify_instances for each in running)
        free = min(inotify_instances - reserved, inotify.available())
        return next((each for each in waiting if each.inotify_instances <= free), None)

    with _ended_together(running):
        while waiting or running:
            while (scenario := next_one()) is not None:
                waiting.remove(scenario)
                running.append(ScenarioRun.start(scenario))
            for ended in [each for each in running if each.has_ended()]:
                running.remove(ended)
                done.append(ended)
                line.clear()
                title = f"=== {ended.scenario.name}: {ended.result}"
                print(f"\n{title}\n{ended.output}{title}\n", flush=True)
            line.show(running)
            time.sleep(POLL_SECONDS)
    return done


@contextmanager
def _ended_together(running: Sequence[ScenarioRun]) -> Iterator[None]:
    """On SIGINT, SIGTERM or an error: interrupts all running scenarios and waits until they have ended."""
    # SIGINT too: a shell starts background processes with SIGINT ignored.
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        # A second signal would leave labs running.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        if running:
            names = ", ".join(each.scenario.name for each in running)
            print(f"\nstopping {names} and their labs", flush=True)
        for each in running:
            each.process.send_signal(signal.SIGINT)
        for each in running:
            each.process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    scenarios = {each.name: each for each in SCENARIOS}
    names = ", ".join(scenarios)
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.run", description="Runs end-to-end scenarios in labs."
    )
    parser.add_argument(
        "--at-once", type=int, default=AT_ONCE, help="how many scenarios run at a time (default: %(default)s)"
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"one of {names} (default: all)")
    flags = parser.parse_args()
    if unknown := [name for name in flags.scenarios if name not in scenarios]:
        parser.error(f"unknown scenario: {', '.join(unknown)} (choose from: {names})")
    if problem := missing():
        print(f"NOT RUN: end to end, {problem}")
        return int(os.environ.get("CI") == "true")
    for lab in stale_labs():
        print(f"removing the lab of a killed test run in {lab.directory}", flush=True)
        lab.down()
    RESULTS.mkdir(parents=True, exist_ok=True)
    results.remove_parts()
    started = time.monotonic()
    try:
        chosen = [scenarios[name] for name in flags.scenarios or scenarios]
        done = run_scenarios(chosen, flags.at_once, inotify.available())
    except KeyboardInterrupt:
        return 130
    results.merge_parts()
    for each in done:
        print(f"{each.scenario.name:<20} {each.result}")
    print(f"end to end: {time.monotonic() - started:.0f} s")
    return int(any(each.process.returncode for each in done))


if __name__ == "__main__":
    sys.exit(main())
