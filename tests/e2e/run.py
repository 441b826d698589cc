"""Tell all end-to-end stories, several beside each other: python -m tests.e2e.run [--at-once N] [STORY…].

Most of a story is waiting: for a kubelet, for a kube-apiserver that comes back. So stories are told beside
each other, each by a pytest of its own, in labs of its own. What one says is kept in build/e2e/STORY.log and
shown whole when it has ended. Ctrl-C ends all of them, and waits until their labs are down. Stories that
somebody has killed cannot: their labs go when the next begin.
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

from bootbridge.lab import watches
from tests.e2e import record
from tests.e2e.abandoned import abandoned_labs
from tests.e2e.stories import STORIES, Story
from tests.support.lab import ACCOUNTS, STORY, missing
from tests.support.process_program import ROOT

# What two cores carry.
AT_ONCE = 4
POLL_SECONDS = 0.5
# Where nothing can be written over, news are told this often.
NEWS_SECONDS = 30.0
# Ends a story that hangs, and judges none: the longest take a fifth of it.
STORY_SECONDS = 1800.0
# For its labs to go down then; those of one that does not even do that go with the next run.
LAST_SECONDS = 300.0
_PYTEST = ("-m", "pytest", "-m", "e2e", "-vv", "--durations=15", "-o", "console_output_style=count")
_COUNT = re.compile(r"\[ *(\d+)/(\d+)\]")
_PASSED, _SKIPPED = (re.compile(rf"\b(\d+) {what}\b.* in [\d.]+s") for what in ("passed", "skipped"))
# Whoever kills us has not ended the stories; they end by themselves then, each with its labs.
_ENDS_WITH_US = ("setpriv", "--pdeathsig=INT")


@dataclass
class Telling:
    """A story that is being told, or has been."""

    story: Story
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    took: float = 0.0
    overdue: bool = False

    @classmethod
    def begin(cls, story: Story) -> Telling:
        with _log_of(story).open("wb") as log:
            process = subprocess.Popen(
                [*_ENDS_WITH_US, sys.executable, *_PYTEST, *story.words],
                cwd=ROOT,
                env={**os.environ, STORY: story.name},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is ours to hand on: once, to pytest alone.
                start_new_session=True,
            )
        return cls(story, process)

    def ended(self) -> bool:
        self.took = time.monotonic() - self.started
        if self.process.poll() is not None:
            return True
        if self.took > STORY_SECONDS and not self.overdue:
            self.overdue = True
            self.process.send_signal(signal.SIGINT)
        if self.took > STORY_SECONDS + LAST_SECONDS:
            self.process.kill()
        return False

    @property
    def said(self) -> str:
        return _log_of(self.story).read_text(errors="replace")

    @property
    def news(self) -> str:
        """How many of its tests have been run."""
        counts = _COUNT.findall(self.said)
        return f"{self.story.name} {'/'.join(counts[-1]) if counts else '…'}"

    @property
    def verdict(self) -> str:
        if self.process.returncode:
            return f"FAILED in {self.took:.0f} s{', for it did not end by itself' if self.overdue else ''}"
        if not _PASSED.search(self.said):
            return "NOT RUN"
        skipped = _SKIPPED.search(self.said)
        return f"passed in {self.took:.0f} s{f', but {skipped[1]} NOT RUN' if skipped else ''}"


def _log_of(story: Story) -> Path:
    return ACCOUNTS / f"{story.name}.log"


class Line:
    """What goes on right now: on a terminal one line that changes, elsewhere one more now and then."""

    def __init__(self) -> None:
        self._started = self._told = time.monotonic()
        self._live = sys.stdout.isatty()

    def show(self, running: Sequence[Telling]) -> None:
        now = time.monotonic()
        minutes, seconds = divmod(int(now - self._started), 60)
        if self._live:
            text = f"{minutes:2}:{seconds:02}  {' · '.join(telling.news for telling in running)}"
            print(f"\r\x1b[K{text[: os.get_terminal_size().columns - 1]}", end="", flush=True)
        elif now - self._told >= NEWS_SECONDS:
            self._told = now
            print(f"{minutes:2}:{seconds:02}  {' · '.join(telling.news for telling in running)}", flush=True)

    def give_way(self) -> None:
        """To something that stays."""
        if self._live:
            print("\r\x1b[K", end="")


def tell(stories: Sequence[Story], at_once: int, watches_given: int) -> list[Telling]:
    """Tell them, so many at a time: always the first for which there are inotify instances enough."""
    waiting, running, done = list(stories), list[Telling](), list[Telling]()
    line = Line()

    def next_one() -> Story | None:
        if not running:
            return waiting[0] if waiting else None
        if len(running) >= at_once:
            return None
        # Asked again: somebody else may hold more by now.
        promised = sum(telling.story.watches for telling in running)
        room = min(watches_given - promised, watches.left())
        return next((story for story in waiting if story.watches <= room), None)

    with _ended_together(running):
        while waiting or running:
            while (story := next_one()) is not None:
                waiting.remove(story)
                running.append(Telling.begin(story))
            for telling in [each for each in running if each.ended()]:
                running.remove(telling)
                done.append(telling)
                line.give_way()
                title = f"=== {telling.story.name}: {telling.verdict}"
                print(f"\n{title}\n{telling.said}{title}\n", flush=True)
            line.show(running)
            time.sleep(POLL_SECONDS)
    return done


@contextmanager
def _ended_together(running: Sequence[Telling]) -> Iterator[None]:
    """Whatever ends us ends those that are running, each with its labs; nobody is left behind half-way."""
    # Ctrl-C too: who was started in the background of a script is deaf to it otherwise.
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        # From here on nothing helps but patience: who is killed now leaves a lab behind.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        if running:
            names = ", ".join(telling.story.name for telling in running)
            print(f"\nending {names}: their labs go down", flush=True)
        for telling in running:
            telling.process.send_signal(signal.SIGINT)
        for telling in running:
            telling.process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    names = {story.name: story for story in STORIES}
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.run", description="End-to-end stories.")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="default: %(default)s")
    parser.add_argument("stories", nargs="*", metavar="STORY", help=f"of: {', '.join(names)} (default: all)")
    flags = parser.parse_args()
    if unknown := [name for name in flags.stories if name not in names]:
        parser.error(f"there is no story {', '.join(unknown)}; there are: {', '.join(names)}")
    if lack := missing():
        print(f"NOT RUN: end to end, {lack}")
        return int(os.environ.get("CI") == "true")
    for lab in abandoned_labs():
        print(f"taking down a lab that a killed run has left in {lab.directory}", flush=True)
        lab.down()
    ACCOUNTS.mkdir(parents=True, exist_ok=True)
    record.forget_parts()
    started = time.monotonic()
    try:
        done = tell([names[name] for name in flags.stories or names], flags.at_once, watches.left())
    except KeyboardInterrupt:
        return 130
    record.put_together()
    for telling in done:
        print(f"{telling.story.name:<20} {telling.verdict}")
    print(f"end to end: {time.monotonic() - started:.0f} s")
    return int(any(telling.process.returncode for telling in done))


if __name__ == "__main__":
    sys.exit(main())
