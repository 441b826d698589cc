"""The log: one line per event, for all values."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.errors import OperatorError
from bootbridge.runtime import logs

any_text = st.text(st.characters())


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    """Every test leaves the process' logging as it found it."""
    root = logging.getLogger()
    ours = logging.getLogger("bootbridge")
    handlers, raising = list(root.handlers), logging.raiseExceptions
    levels = {logger: logger.level for logger in (root, ours)}
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()
    for logger, level in levels.items():
        logger.setLevel(level)
    logging.raiseExceptions = raising


def line_of(formatter: logging.Formatter, message: str, **fields: object) -> str:
    record = logging.LogRecord("server", logging.INFO, "", 0, "%s", (message,), None)
    record.fields = fields
    return formatter.format(record)


def logged(file: Path) -> list[str]:
    logs.flush()
    return file.read_text().splitlines()


def test_text_lines_have_time_level_place_message_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """Plain values stand bare, values with spaces or quotes are quoted, booleans are lower case."""
    logs.configure("text", 0, "proxy-server")
    logs.event(
        "server", logs.WARNING, "agent lost", agent="node-7", why='answer "no"', streams=2, drained=True
    )

    line = capsys.readouterr().err
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING server: agent lost "
        r'agent=node-7 why="answer \\"no\\"" streams=2 drained=true\n',
        line,
    )


def test_json_lines_hold_the_same_with_types(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers and booleans stay what they are; a field cannot replace one of the line's own keys."""
    logs.configure("json", 0, "proxy-agent")
    logs.event(
        "agent", logs.INFO, "dialled", seconds=0.5, ok=True, level="mine", nothing=None, inf=float("inf")
    )

    line = json.loads(capsys.readouterr().err, parse_constant=pytest.fail)
    line.pop("time")
    assert line == {
        "level": "info",
        "program": "proxy-agent",
        "logger": "agent",
        "message": "dialled",
        "seconds": 0.5,
        "ok": True,
        "level_": "mine",
        "nothing": None,
        "inf": "inf",
    }


def test_debug_events_show_from_verbosity_five(capsys: pytest.CaptureFixture[str]) -> None:
    """The log is quiet by default; `-v 5` and above shows details."""
    for verbosity in (0, 4, 5, 9):
        logs.configure("text", verbosity, "p")
        logs.event("server", logs.DEBUG, f"detail at {verbosity}")

    shown = [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["detail at 5", "detail at 9"]


def test_libraries_log_only_warnings_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """Their debug lines contain what they process: hpack's have every header that it decodes."""
    logs.configure("text", 10, "p")
    library = logging.getLogger("hpack.hpack")
    library.debug("Decoded (b'authorization', b'Bearer secret')")
    library.info("details")
    library.warning("deprecated")

    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING hpack.hpack: deprecated")


def test_configuring_again_replaces_the_earlier_output(capsys: pytest.CaptureFixture[str]) -> None:
    """No line is ever written twice."""
    logs.configure("text")
    logs.configure("json")
    logs.event("server", logs.INFO, "once")

    assert len(capsys.readouterr().err.splitlines()) == 1


@given(any_text, any_text)
def test_no_text_can_break_a_line_or_forge_a_field(message: str, value: str) -> None:
    """Any value of a peer stays inside one printable line and cannot forge fields."""
    strange = line_of(logs.TextFormatter("p"), message, peer=value)
    ours = line_of(logs.TextFormatter("p"), "agent refused", peer=value, last=1)

    assert strange.isprintable()
    assert strange.encode()
    shown = re.fullmatch(r'.* INFO server: agent refused peer=([^"\s=]+|"(?:[^"\\]|\\.)*") last=1', ours)
    assert shown is not None
    assert shown[1] == value or json.loads(shown[1]) == value


@given(any_text, any_text)
def test_any_text_reads_back_from_a_json_line(message: str, value: str) -> None:
    """JSON lines are printable ASCII and give back exactly what was logged."""
    line = line_of(logs.JsonFormatter("p"), message, peer=value)

    assert line.isascii()
    assert line.isprintable()
    read = json.loads(line)
    assert (read["message"], read["peer"]) == (message, value)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_exception_is_one_line_too(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback is a field, so that nothing else can be taken for a line of its own."""
    logs.configure(log_format)
    try:
        raise RuntimeError("broken\nINFO server: all is well")
    except RuntimeError:
        logging.getLogger("asyncio").exception("task failed")

    (line,) = capsys.readouterr().err.splitlines()
    assert "task failed" in line
    assert "Traceback" in line
    assert "test_logs.py" in line


def test_the_log_file_is_used_when_stderr_is_switched_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with klog, `--log-file` counts only together with `--logtostderr=false`."""
    file = tmp_path / "server.log"
    logs.configure("text", log_file=str(file))
    logs.event("server", logs.INFO, "to stderr")
    logs.configure("text", log_file=str(file), logtostderr=False)
    logs.event("server", logs.INFO, "to the file")

    assert [line.rpartition(": ")[2] for line in logged(file)] == ["to the file"]
    assert capsys.readouterr().err.count("\n") == 1


def test_a_library_with_wrong_arguments_does_not_fail_its_caller(tmp_path: Path) -> None:
    """With the handler of a real file descriptor; the next line is written."""
    logs.configure(log_file=str(tmp_path / "log"), logtostderr=False)
    logging.getLogger("library").warning("%d bytes", "many")
    logging.getLogger("library").warning("next")
    logs.flush()
    assert "library: next" in (tmp_path / "log").read_text()


def test_bad_formats_and_files_are_named(tmp_path: Path) -> None:
    """The message names the flag and says what would work."""
    with pytest.raises(OperatorError, match=r"--log-format.*'xml'.*text or json"):
        logs.configure("xml")
    with pytest.raises(OperatorError, match=r"--log-file.*No such file or directory"):
        logs.configure("text", log_file=str(tmp_path / "none" / "x.log"), logtostderr=False)


def test_a_closed_stderr_does_not_disturb_the_program() -> None:
    """A closed stderr does not stop the program."""
    program = (
        "import sys; from bootbridge.runtime import logs; logs.configure('text')\n"
        "sys.stdin.readline()\n"
        "for _ in range(10): logs.event('x', logs.INFO, 'y' * 10000)\n"
        "print('alive')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.close()
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.read() == b"alive\n"
