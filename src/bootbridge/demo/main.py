"""``bootbridge demo``: the run, the clean-up and the exit code."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict
from typing import Any

from bootbridge.common.field_names import camel_case
from bootbridge.common.progress import Progress
from bootbridge.common.terminal.terminal import Styled, Terminal
from bootbridge.demo import output
from bootbridge.demo.calls import CallFailed
from bootbridge.demo.interrupts import Interrupted, Interrupts
from bootbridge.demo.scenario import DemoScenario
from bootbridge.demo.steps import StepFailed, Steps
from bootbridge.demo.workspace import DemoWorkspace


def run(flags: argparse.Namespace) -> int:
    """Runs the demo and cleans up; returns 0 only if every step succeeded and everything was removed."""
    progress = Progress(None if flags.json else sys.stdout)
    terminal = progress.terminal
    with Interrupts() as interrupts:
        steps = Steps(progress)
        workspace = DemoWorkspace(interrupts)
        scenario = DemoScenario(steps, workspace, loopback_reason="--no-root" if flags.no_root else "")
        try:
            exit_code = _run_scenario(scenario, terminal, keep=flags.keep)
        except Interrupted as interruption:
            exit_code = interruption.exit_code
        except BrokenPipeError:
            exit_code = 128 + signal.SIGPIPE
        finally:
            interrupts.ignore_from_now_on()
            removed = _clean_up(steps, workspace)
    exit_code = exit_code or int(not removed)
    if flags.json:
        print(json.dumps(_as_json(scenario, exit_code), indent=2, ensure_ascii=False))
    elif terminal.closed:
        # Otherwise the interpreter flushes at exit and prints a BrokenPipeError.
        sys.stdout = None
    else:
        output.show_summary(scenario, exit_code, progress.seconds, terminal)
    return exit_code


def _run_scenario(scenario: DemoScenario, terminal: Terminal, *, keep: bool) -> int:
    """Runs the scenario up to its end or its first failed step; does not clean up."""
    try:
        scenario.workspace.create()
        output.show_title(terminal)
        scenario.run()
        output.show_latencies(scenario.latencies, terminal)
        if keep:
            port = scenario.open_local_port()
            output.show_commands_to_try(scenario, port, terminal)
            _wait_for_ctrl_c()
    except (StepFailed, CallFailed) as failure:
        _show_log_tail(scenario, terminal, failure.log_of)
        return 1
    except BrokenPipeError:
        raise
    except OSError:
        # The failed step has printed it.
        return 1
    return 0


def _wait_for_ctrl_c() -> None:
    try:
        while True:
            signal.pause()
    except Interrupted:
        # With --keep, a signal is the normal end.
        pass


def _show_log_tail(scenario: DemoScenario, terminal: Terminal, name: str) -> None:
    process = scenario.workspace.processes.named(name) if name else None
    if process and (lines := process.log_tail()):
        scenario.steps.all[-1].log_tail = lines
        terminal.line()
        terminal.line(Styled(f"last log lines of {name}:", "strong"))
        for line in lines:
            terminal.line(line, indent=2)
        terminal.line()


def _clean_up(steps: Steps, workspace: DemoWorkspace) -> bool:
    """Removes everything, then checks that it is gone."""
    try:
        with steps.step("Clean-up") as step:
            created = workspace.created()
            workspace.remove(steps.waiting)
            if left := workspace.left():
                raise StepFailed(f"not removed: {', '.join(left)}")
            step.detail = f"removed {created}"
    except StepFailed:
        return False
    except (Interrupted, BrokenPipeError):
        # The reader of stdout is gone: remove everything without output.
        workspace.remove(lambda _: None)
    return True


def _as_json(scenario: DemoScenario, exit_code: int) -> dict[str, Any]:
    return {
        "ok": exit_code == 0,
        "network": "loopback" if scenario.loopback_reason else "namespaces",
        "loopbackReason": scenario.loopback_reason,
        "steps": [_camel_case(asdict(step)) for step in scenario.steps.all],
        "latency": [_camel_case(asdict(latency)) for latency in scenario.latencies],
        "notRemoved": scenario.workspace.left(),
    }


def _camel_case(fields: dict[str, Any]) -> dict[str, Any]:
    return {camel_case(name): value for name, value in fields.items()}
