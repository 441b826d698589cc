"""What is shown: every step on a line of its own, colour and motion only where they belong."""

from __future__ import annotations

import io
import os
import pty
import select
from collections.abc import Iterator

import pytest

from bootbridge.demo.interrupts import Interrupted
from bootbridge.demo.steps import Screen, StepFailed, Steps


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal:
    """A pseudo-terminal: what is written to `out` comes out of `text`."""

    def __init__(self) -> None:
        self._near, far = pty.openpty()
        self.out = open(far, "w", encoding="utf-8")  # noqa: SIM115

    def text(self, end: str = "made\r\n") -> str:
        """What has come out, up to and with `end`; a terminal hands it over in pieces."""
        self.out.flush()
        seen = b""
        while end.encode() not in seen:
            assert select.select([self._near], [], [], 5)[0], f"{end!r} never came after {seen!r}"
            seen += os.read(self._near, 65536)
        return seen.decode()

    def close(self) -> None:
        self.out.close()
        os.close(self._near)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def tell(screen: Screen) -> Steps:
    clock = Clock()
    steps = Steps(screen, clock)
    with steps.step("Certificates") as step:
        clock.now += 0.012
        step.detail = "made"
    return steps


def test_a_step_is_one_aligned_line_with_its_time() -> None:
    """Number, mark, milliseconds, title, detail."""
    out = io.StringIO()
    tell(Screen(out))
    assert out.getvalue() == "  1 ✓     12 ms  Certificates         made\n"


def test_no_escape_sequences_where_there_is_no_terminal() -> None:
    """A log file is for reading."""
    out = io.StringIO()
    tell(Screen(out, environment={"TERM": "xterm"}))
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


def test_a_terminal_shows_colour(terminal: Terminal) -> None:
    """The counterpart: on a terminal there is some."""
    tell(Screen(terminal.out, environment={"TERM": "xterm"}))
    assert "\x1b[32m✓\x1b[0m" in terminal.text()


def test_no_color_is_honoured(terminal: Terminal) -> None:
    """NO_COLOR turns colours off, wherever we run; overwriting a line is no colour."""
    tell(Screen(terminal.out, environment={"TERM": "xterm", "NO_COLOR": "1"}))
    text = terminal.text()
    assert "✓" in text
    assert "\x1b[" not in text.replace("\r\x1b[K", "")


def test_a_terminal_names_the_step_that_is_running(terminal: Terminal) -> None:
    """Before it is done, and overwritten by its result."""
    steps = Steps(Screen(terminal.out, environment={"TERM": "xterm"}))
    with steps.step("Certificates"):
        terminal.text(end="Certificates …")
    assert terminal.text(end="\r\n").startswith("\r\x1b[K")


def test_a_dumb_terminal_gets_plain_lines(terminal: Terminal) -> None:
    """TERM=dumb cannot move its cursor."""
    tell(Screen(terminal.out, environment={"TERM": "dumb"}))
    assert "\x1b" not in terminal.text()


def test_marks_survive_an_encoding_without_them() -> None:
    """LANG=C is no reason to crash."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    tell(Screen(out))
    assert raw.getvalue().startswith(b"  1 ok ")


def test_a_failed_step_is_shown_remembered_and_passed_on() -> None:
    """One clear line with the reason."""
    out = io.StringIO()
    steps = Steps(Screen(out))
    with pytest.raises(StepFailed), steps.step("proxy-server"):
        raise StepFailed("ended at once")
    assert "  1 ✗ " in out.getvalue()
    assert "ended at once" in out.getvalue()
    assert [(step.ok, step.detail) for step in steps.taken] == [(False, "ended at once")]


def test_waiting_is_announced_after_two_seconds_and_not_before() -> None:
    """Quick things stay quiet; slow ones say what they wait for, at a calm pace."""
    out, clock = io.StringIO(), Clock()
    steps = Steps(Screen(out), clock)
    with steps.step("proxy-agents"):
        for _ in range(45):
            clock.now += 0.1
            steps.waiting("waiting for 2 agents")
    assert out.getvalue().count("waiting for 2 agents") == 2
    assert "… waiting for 2 agents (2 s)" in out.getvalue()


def test_wait_until_gives_up_in_time() -> None:
    """False, not forever."""
    steps = Steps(Screen(None))
    with steps.step("nothing"):
        assert steps.wait_until(lambda: False, "nothing", seconds=0.02) is False
        assert steps.wait_until(lambda: True, "anything", seconds=0.02) is True


def test_a_reader_who_leaves_stops_the_demo_and_gets_silence() -> None:
    """`| head` ends it as a signal would; what is printed during clean-up harms nobody."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    screen = Screen(Gone())
    with pytest.raises(Interrupted):
        screen.line("hello")
    screen.line("still there?")
    assert screen.abandoned
