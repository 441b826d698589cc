"""Progress output: overwritten in place on a terminal, few plain lines in a log."""

from __future__ import annotations

import io

from bootbridge.common.progress import WAITING_SECONDS_MAX, Progress


class FakeTerminal(io.StringIO):
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


def test_five_minutes_of_waiting_are_few_lines_in_a_log() -> None:
    lines = waited(io.StringIO(), 300, ["no agent yet"])
    assert 5 < len(lines) < 300 / WAITING_SECONDS_MAX + 6


def test_a_new_reason_is_shown_at_once() -> None:
    lines = waited(io.StringIO(), 60, ["no agent yet", "one of two agents"])
    assert [line for line in lines if "30 s" in line and "one of two" in line]


def test_a_quick_step_is_one_line() -> None:
    assert len(waited(io.StringIO(), 2, ["soon"])) == 1


def test_on_a_terminal_the_result_overwrites_the_waiting_line() -> None:
    lines = waited(FakeTerminal(), 60, ["no agent yet"])
    assert len(lines) == 1
    assert lines[0].count("\r\x1b[K") > 20
    assert "created" in lines[0].rpartition("\x1b[K")[2]


def test_control_characters_do_not_reach_the_terminal() -> None:
    out = FakeTerminal()
    progress = Progress(out, clock=Clock(), environment={"TERM": "xterm", "NO_COLOR": "1"})
    progress.begin("server")
    progress.end("gone \x1b]0;owned\x07 at last")
    progress.line("and \x1b[2J")
    assert out.getvalue().count("\x1b") == out.getvalue().count("\r\x1b[K")


def test_titles_stay_in_their_column_however_long_a_step_takes() -> None:
    """Also beside steps of minutes and hours, whose duration has more figures."""
    out, clock = io.StringIO(), Clock()
    progress = Progress(out, clock=clock, environment={"TERM": "xterm"})
    for seconds in (0.3, 42.0, 59.9, 61.0, 185.0, 599.0, 3599.0, 5999.0, 7322.0, 86_400.0):
        progress.finished("server", "created", seconds, good=True)
    assert len({line.index("server") for line in out.getvalue().splitlines()}) == 1
    assert "3.1 min  server" in out.getvalue()
