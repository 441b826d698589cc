"""``bootbridge status --watch``: shows a bootstrap while it runs, until the tunnel is ready."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from bootbridge.bootstrap.diagnose.bootstrap_watch import Observation, WatchLine, WatchState, observe
from bootbridge.bootstrap.install.context import InstallContext
from bootbridge.cli.command import ExitCode
from bootbridge.cli.output import print_output
from bootbridge.common.terminal.characters import escape_control_characters, for_output
from bootbridge.common.terminal.figures import duration
from bootbridge.common.terminal.styles import STYLES
from bootbridge.common.terminal.terminal import Mark, Terminal
from bootbridge.errors import OperatorError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

INTERVAL_SECONDS = 2.0
_MARKS = {WatchState.DONE: Mark.GOOD, WatchState.FAILED: Mark.BAD, WatchState.WAITING: Mark.SKIPPED}
_RUNNING = "▶"
OpenContext = Callable[[], AbstractContextManager[InstallContext]]


def watch(open_context: OpenContext, *, as_json: bool) -> int:
    """Looks until the tunnel is ready; returns the exit code.

    The context is opened again each time: plan record and kubeconfig appear during a bootstrap.
    """
    terminal = Terminal(sys.stdout)
    if as_json:
        return _until_ready(open_context, _JsonLines().show)
    if not terminal.live:
        return _until_ready(open_context, _ChangedLines(terminal).show)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        return _watch_live(open_context, terminal)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """Ends by an exception, so that the cursor is shown again."""
    sys.exit(128 + number)


def _until_ready(open_context: OpenContext, show: Callable[[Observation], None]) -> int:
    while True:
        try:
            with open_context() as context:
                seen = observe(context)
        except OperatorError as error:  # for example a kubeconfig that is being written
            seen = Observation((WatchLine("node", WatchState.FAILED, str(error)),), works=False)
        show(seen)
        if seen.result:
            return ExitCode.OK
        time.sleep(INTERVAL_SECONDS)


class _ChangedLines:
    """For a pipe or file: one line for each change, with its time."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._shown: dict[str, WatchLine] = {}

    def show(self, seen: Observation) -> None:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        for line in seen.lines:
            before = self._shown.get(line.title)
            if before is None or (before.state, before.text) != (line.state, line.text):
                self._terminal.record(
                    [now, _MARKS.get(line.state, Mark.NONE), f"{line.title.strip()}: {line.text}"]
                )
        for title in self._shown.keys() - {line.title for line in seen.lines}:
            self._terminal.record([now, Mark.NONE, f"{title.strip()}: gone"])
        self._shown = {line.title: line for line in seen.lines}
        if seen.result:
            self._terminal.record([now, Mark.GOOD, seen.result])


class _JsonLines:
    """One document per change, each on a line."""

    def __init__(self) -> None:
        self._shown = ""

    def show(self, seen: Observation) -> None:
        lines = [line.document() for line in seen.lines]
        text = json.dumps({"works": seen.works, "result": seen.result, "lines": lines})
        if text != self._shown:
            self._shown = text
            now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            print_output(f'{{"version": 1, "time": "{now}", {text[1:]}\n')


def _watch_live(open_context: OpenContext, terminal: Terminal) -> int:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout, highlight=False, markup=False, no_color=not terminal.colour)
    started = time.monotonic()
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:

        def show(seen: Observation) -> None:
            live.update(_rendered(seen, terminal, time.monotonic() - started), refresh=True)

        return _until_ready(open_context, show)


def _rendered(seen: Observation, terminal: Terminal, seconds: float) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines = [_line(line, terminal, max(len(each.title) for each in seen.lines)) for line in seen.lines]
    for line in lines:
        line.truncate(terminal.columns or 80, overflow="ellipsis")
    if seen.result:
        sign = Mark.GOOD.sign(terminal.unicode)
        end = Text.assemble((f"{sign} ", STYLES["good"]), (seen.result, STYLES["strong"]))
    else:
        end = Text(f"{duration(seconds)}; ctrl-c ends the watch, not the bootstrap", STYLES["dim"])
    return Group(*lines, Text(), end)


def _line(line: WatchLine, terminal: Terminal, width: int) -> Text:
    from rich.text import Text

    mark, text = _MARKS.get(line.state, Mark.NONE), line.text
    sign, style = mark.sign(terminal.unicode), mark.style
    if line.state is WatchState.RUNNING:
        sign, style = for_output(_RUNNING, sys.stdout), "command"
        if line.started:
            text += f" ({duration((datetime.now(UTC) - line.started).total_seconds())})"
    title, text = (for_output(escape_control_characters(each), sys.stdout) for each in (line.title, text))
    return Text.assemble(
        (f"{sign:<{Mark.width(terminal.unicode)}} ", STYLES[style]),
        f"{title:<{width}}  ",
        (text, STYLES["dim" if line.state is WatchState.WAITING else ""]),
    )
