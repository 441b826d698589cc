"""``bootbridge demo``: flags, the run, the clean-up, the exit code."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from bootbridge.demo import pages
from bootbridge.demo.calls import HopFailed
from bootbridge.demo.certificate_files import Workshop
from bootbridge.demo.interrupts import Interrupted, Interrupts
from bootbridge.demo.scenario import Story
from bootbridge.demo.steps import Screen, StepFailed, Steps
from bootbridge.errors import OperatorError


class _Flags(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OperatorError(message, hint="run 'bootbridge demo --help' for usage")


def run(argv: Sequence[str]) -> int:
    """Show it all; 0 only if every step held and nothing is left behind."""
    flags = _flags().parse_args(argv)
    screen = Screen(None if flags.json else sys.stdout)
    with Interrupts() as interrupts:
        steps = Steps(screen)
        workshop = Workshop(interrupts)
        story = Story(steps, workshop, loopback_because="--no-root" if flags.no_root else "")
        try:
            exit_code = _tell(story, screen, keep=flags.keep)
        except Interrupted as interruption:
            exit_code = interruption.exit_code
        finally:
            interrupts.ignore_from_now_on()
            tidy = _clean_up(steps, workshop)
    exit_code = exit_code or int(not tidy)
    if flags.json:
        print(json.dumps(_as_json(story, exit_code), indent=2, ensure_ascii=False))
    elif screen.abandoned:
        # The interpreter would flush once more at exit, and complain.
        sys.stdout = None
    else:
        screen.line(pages.verdict(steps.taken, exit_code, screen))
    return exit_code


def _tell(story: Story, screen: Screen, *, keep: bool) -> int:
    """The story up to its end or its first failure; the clean-up is not ours."""
    try:
        story.workshop.open()
        screen.line(pages.opening(screen))
        story.tell()
        screen.line(pages.latency_table(story.latencies, screen))
        if keep:
            relay_port = story.open_for_visitors()
            screen.line(pages.how_to_try(story, relay_port, screen))
            _wait_for_ctrl_c()
    except (StepFailed, HopFailed) as failure:
        _show_last_words(story, screen, failure.log_of)
        return 1
    except OSError:
        # The step has said what it was.
        return 1
    return 0


def _wait_for_ctrl_c() -> None:
    try:
        while True:
            signal.pause()
    except Interrupted:
        # This is how it was meant to end.
        pass


def _show_last_words(story: Story, screen: Screen, name: str) -> None:
    program = story.workshop.programs.named(name) if name else None
    words = program.last_words() if program else []
    if words:
        story.steps.taken[-1].last_words = words
        screen.line(f"\n{name} said last:")
        for line in words:
            screen.line(f"  {line}")
        screen.line()


def _clean_up(steps: Steps, workshop: Workshop) -> bool:
    """Remove everything, then look whether that is so."""
    try:
        with steps.step("Clean-up") as step:
            made = workshop.made()
            workshop.clean_up(steps.waiting)
            left = workshop.left()
            if left:
                raise StepFailed(f"left behind: {', '.join(left)}")
            step.detail = f"{made}: nothing is left"
    except StepFailed:
        return False
    except Interrupted:
        # Nobody reads any more; what matters is done in silence.
        workshop.clean_up(lambda _: None)
    return True


def _as_json(story: Story, exit_code: int) -> dict[str, Any]:
    return {
        "ok": exit_code == 0,
        "site": "loopback" if story.loopback_because else "namespaces",
        "loopback_because": story.loopback_because,
        "steps": [asdict(step) for step in story.steps.taken],
        "latency": [asdict(latency) for latency in story.latencies],
        "left_behind": story.workshop.left(),
    }


def _flags() -> _Flags:
    parser = _Flags(
        prog="bootbridge demo",
        description=pages.DESCRIPTION,
        epilog=pages.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--no-root", action="store_true", help="use loopback even where namespaces are possible"
    )
    ending = parser.add_mutually_exclusive_group()
    ending.add_argument(
        "--keep", action="store_true", help="leave it running until Ctrl-C, to try it by hand"
    )
    ending.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else")
    return parser
