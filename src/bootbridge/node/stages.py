"""kubeadm's output as stages: `[certs] Generating …` is the stage "certs" saying something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from bootbridge.node.init.messages import DONE, FAILED, OUTPUT, STARTED, StageEvent
from bootbridge.node.ports import ProgressCallback

# Lower case alone: `[WARNING Swap]` and `[ERROR Port-6443]` are said within a stage.
_STAGE = re.compile(r"\[([a-z][a-z0-9-]*)\]:? ?(.*)")


class Stages:
    """Hears lines, and says which stage began, spoke and ended; before kubeadm names one it is `name`."""

    def __init__(self, name: str, progress: ProgressCallback) -> None:
        self._progress = progress
        self._name = ""
        self._begin(name)

    def line(self, line: str) -> None:
        text = line
        if found := _STAGE.match(line):
            name, text = found.groups()
            if name != self._name:
                self.end(DONE)
                self._begin(name)
        if text:
            self._progress(StageEvent(self._name, OUTPUT, text))

    def end(self, state: str, text: str = "") -> None:
        self._progress(StageEvent(self._name, state, text))

    def _begin(self, name: str) -> None:
        self._name = name
        self._progress(StageEvent(name, STARTED))


@contextmanager
def stages(name: str, progress: ProgressCallback) -> Iterator[Stages]:
    """The last stage ends well unless something is raised."""
    told = Stages(name, progress)
    try:
        yield told
    except BaseException as error:
        told.end(FAILED, str(error) or type(error).__name__)
        raise
    told.end(DONE)
