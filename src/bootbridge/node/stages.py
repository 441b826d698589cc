"""Progress of a flow as stages: each starts, has output, and ends as done or failed.

kubeadm's output is split into its phases: the line `[certs] Generating …` is output of the stage `certs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bootbridge.node.init.messages import DONE, FAILED, OUTPUT, STARTED, StageEvent
from bootbridge.runtime import logs

# Called from the event loop's thread while a step of a flow runs; must neither block nor raise.
ProgressCallback = Callable[[StageEvent], None]

# Lower case only: `[WARNING Swap]` and `[ERROR Port-6443]` are output of the current stage.
_STAGE = re.compile(r"\[([a-z][a-z0-9-]*)\]:? ?(.*)")


def log_stage(event: StageEvent) -> None:
    """The ProgressCallback that writes each event to the log of this process."""
    level = logs.ERROR if event.state == FAILED else logs.INFO
    logs.event("node", level, f"stage {event.state}", stage=event.name, text=event.text)


class StageTracker:
    """Turns lines of output into stage events; `name` is the stage until kubeadm names the first phase."""

    def __init__(self, name: str, progress: ProgressCallback) -> None:
        self._progress = progress
        self._name = ""
        self._start(name)

    def line(self, line: str) -> None:
        text = line
        if found := _STAGE.match(line):
            name, text = found.groups()
            if name != self._name:
                self.end(DONE)
                self._start(name)
        if text:
            self._progress(StageEvent(self._name, OUTPUT, text))

    def end(self, state: str, text: str = "") -> None:
        self._progress(StageEvent(self._name, state, text))

    def _start(self, name: str) -> None:
        self._name = name
        self._progress(StageEvent(name, STARTED))


@contextmanager
def stages(name: str, progress: ProgressCallback) -> Iterator[StageTracker]:
    """Reports the last stage as done, or as failed with the text of the exception that is raised."""
    tracker = StageTracker(name, progress)
    try:
        yield tracker
    except BaseException as error:
        tracker.end(FAILED, str(error) or type(error).__name__)
        raise
    tracker.end(DONE)
