"""Whoever waits is told for what: in place on a terminal, without flooding a log."""

from __future__ import annotations

import io

from bootbridge.common.progress import PATIENCE_SECONDS_MAX, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def waited(out: io.StringIO, seconds: int, reasons: list[str]) -> list[str]:
    clock = Clock()
    progress = Progress(out, clock=clock, environment={"TERM": "xterm"})
    progress.begin("server")
    for second in range(seconds):
        clock.now = float(second)
        progress.waiting(reasons[second * len(reasons) // seconds])
    progress.end("created")
    return out.getvalue().rstrip("\n").split("\n")


def test_five_minutes_of_waiting_are_a_dozen_lines_in_a_log() -> None:
    lines = waited(io.StringIO(), 300, ["no agent yet"])
    assert 5 < len(lines) < 300 / PATIENCE_SECONDS_MAX + 6


def test_news_are_told_at_once() -> None:
    lines = waited(io.StringIO(), 60, ["no agent yet", "one of two agents"])
    assert [line for line in lines if "30.0 s" in line and "one of two" in line]


def test_a_step_that_is_quick_is_one_line() -> None:
    assert len(waited(io.StringIO(), 2, ["soon"])) == 1


def test_a_terminal_shows_the_wait_in_one_line_that_the_end_replaces() -> None:
    lines = waited(Terminal(), 60, ["no agent yet"])
    assert len(lines) == 1
    assert lines[0].count("\r\x1b[K") > 20
    assert "created" in lines[0].rpartition("\x1b[K")[2]


def test_what_a_cluster_says_cannot_command_the_terminal() -> None:
    out = Terminal()
    progress = Progress(out, clock=Clock(), environment={"TERM": "xterm", "NO_COLOR": "1"})
    progress.begin("server")
    progress.end("gone \x1b]0;owned\x07 at last")
    progress.line("and \x1b[2J")
    assert out.getvalue().count("\x1b") == out.getvalue().count("\r\x1b[K")
