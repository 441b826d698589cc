"""The demo's output: one line per step; colours and overwritten lines only on a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
from collections.abc import Iterator
from typing import TextIO

import pytest

from bootbridge.common.progress import Progress
from bootbridge.demo.steps import StepFailed, Steps


class Clock:
    """A clock that only tests advance."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Pty:
    """A pseudo-terminal: `text` returns what was written to `out`."""

    def __init__(self) -> None:
        self._near, far = pty.openpty()
        self.out = open(far, "w", encoding="utf-8")  # noqa: SIM115

    def text(self, end: str = "made\r\n") -> str:
        """Returns the output up to and including `end`; a terminal delivers it in pieces."""
        self.out.flush()
        seen = b""
        while end.encode() not in seen:
            assert select.select([self._near], [], [], 5)[0], f"{end!r} missing after {seen!r}"
            seen += os.read(self._near, 65536)
        return seen.decode()

    def close(self) -> None:
        self.out.close()
        os.close(self._near)


@pytest.fixture
def pty_device() -> Iterator[Pty]:
    pseudo = Pty()
    yield pseudo
    pseudo.close()


def run_one_step(out: TextIO, **environment: str) -> Steps:
    clock = Clock()
    steps = Steps(Progress(out, clock=clock, environment=environment), clock)
    with steps.step("Certificates") as step:
        clock.now += 0.012
        step.detail = "made"
    return steps


def test_step_is_one_aligned_line_with_its_time() -> None:
    out = io.StringIO()
    run_one_step(out)
    assert out.getvalue() == "ok      0.0 s   1 Certificates           made\n"


def test_file_gets_no_escape_sequences() -> None:
    out = io.StringIO()
    run_one_step(out, TERM="xterm")
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


def test_terminal_gets_colours(pty_device: Pty) -> None:
    run_one_step(pty_device.out, TERM="xterm")
    assert "\x1b[32m✓\x1b[0m" in pty_device.text()


def test_no_color_turns_off_colours_but_not_overwriting(pty_device: Pty) -> None:
    run_one_step(pty_device.out, TERM="xterm", NO_COLOR="1")
    text = pty_device.text()
    assert "✓" in text
    assert "\x1b[" not in text.replace("\r\x1b[K", "")


def test_terminal_shows_the_running_step_and_overwrites_it(pty_device: Pty) -> None:
    steps = Steps(Progress(pty_device.out, environment={"TERM": "xterm", "NO_COLOR": "1"}))
    with steps.step("Certificates"):
        pty_device.text(end="Certificates …")
    assert pty_device.text(end="\r\n").startswith("\r\x1b[K")


def test_dumb_terminal_gets_plain_lines(pty_device: Pty) -> None:
    run_one_step(pty_device.out, TERM="dumb")
    assert "\x1b" not in pty_device.text()


def test_ascii_output_gets_ascii_characters() -> None:
    """As with LANG=C."""
    raw = io.BytesIO()
    progress = Progress(io.TextIOWrapper(raw, encoding="ascii"))
    progress.line("CONNECT → pod")
    assert raw.getvalue() == b"               CONNECT -> pod\n"


def test_failed_step_is_printed_recorded_and_raised() -> None:
    out = io.StringIO()
    steps = Steps(Progress(out))
    with pytest.raises(StepFailed), steps.step("proxy-server"):
        raise StepFailed("exited with code 1")
    assert out.getvalue() == "FAIL    0.0 s   1 proxy-server           exited with code 1\n"
    assert [(step.ok, step.detail) for step in steps.all] == [(False, "exited with code 1")]


def test_waiting_is_printed_after_two_seconds() -> None:
    out, clock = io.StringIO(), Clock()
    steps = Steps(Progress(out, clock=clock), clock)
    with steps.step("proxy-agents"):
        for _ in range(45):
            clock.now += 0.1
            steps.waiting("2 agents")
    assert out.getvalue().count("waiting: 2 agents") == 2
    assert "2.1 s   1 proxy-agents           waiting: 2 agents" in out.getvalue()


def test_wait_until_returns_false_after_its_timeout() -> None:
    steps = Steps(Progress(None))
    with steps.step("nothing"):
        assert steps.wait_until(lambda: False, "nothing", seconds=0.02) is False
        assert steps.wait_until(lambda: True, "anything", seconds=0.02) is True


def test_closed_output_interrupts_once_and_is_silent_afterwards() -> None:
    """As with `| head`."""

    class ClosedPipe(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    progress = Progress(ClosedPipe())
    with pytest.raises(BrokenPipeError):
        progress.line("hello")
    progress.line("still there?")
    assert progress.terminal.closed
