"""The look of the verbs: records that wrap on a terminal, one line each without one, and hostile texts."""

from __future__ import annotations

import io
import os
import re

import pytest

from bootbridge.common.terminal.figures import counted, duration, size
from bootbridge.common.terminal.terminal import Mark, Styled, Terminal
from tests.support.terminal import PseudoTerminal, squeezed, without_colour

UTF8 = {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
SENTENCE = (
    "the agents' port 8091 of 192.0.2.5 is closed for nodes of 10.0.0.0/16; a firewall drops the packets"
)


def shown(columns: int, environment: dict[str, str] = UTF8) -> tuple[Terminal, PseudoTerminal]:
    terminal = PseudoTerminal(columns)
    return Terminal(terminal.out, environment=environment), terminal


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_a_record_wraps_within_the_terminal_and_loses_nothing(columns: int) -> None:
    terminal, screen = shown(columns)
    terminal.record([Mark.BAD, "agent connection", "firewall", SENTENCE], widths=(0, 18, 12))
    text = screen.text()
    assert max(map(len, without_colour(text).splitlines())) <= columns
    assert squeezed(text) == squeezed("✗ agent connection firewall " + SENTENCE)


def test_the_last_cell_hangs_below_itself_where_there_is_room() -> None:
    terminal, screen = shown(80)
    terminal.record([Mark.GOOD, "firewall", SENTENCE], widths=(0, 12))
    first, *more = without_colour(screen.text()).splitlines()
    assert first.startswith("✓ firewall      the agents'")
    assert more
    assert all(re.match(r" {16}\S", line) for line in more)


def test_a_cell_longer_than_the_terminal_is_continued() -> None:
    """A path of 100 characters without a blank."""
    terminal, screen = shown(60)
    path = "/" + "x" * 100
    terminal.record([path, "0644", "created"])
    text = screen.text()
    assert max(map(len, text.splitlines())) <= 60
    assert squeezed(text) == f"{path}0644created"


def test_a_pipe_gets_one_line_per_record_with_ascii_marks() -> None:
    out = io.StringIO()
    Terminal(out, environment=UTF8).table([(Mark.GOOD, "a", SENTENCE), (Mark.BAD, "long name", "short")])
    assert out.getvalue() == f"ok   a          {SENTENCE}\nFAIL long name  short\n"


def test_a_table_has_aligned_columns_and_figures_to_the_right() -> None:
    out = io.StringIO()
    Terminal(out, environment=UTF8).table(
        [("a", "1.25 ms", "x"), ("bb", "10 ms", "y")], head=("NAME", "P50", "Z"), right=[1]
    )
    assert out.getvalue() == "NAME      P50  Z\na     1.25 ms  x\nbb      10 ms  y\n"


def test_no_line_ends_with_blanks() -> None:
    for columns in (0, 60, 120):
        out = PseudoTerminal(columns) if columns else io.StringIO()
        terminal = Terminal(out.out if isinstance(out, PseudoTerminal) else out, environment=UTF8)
        terminal.table([("a", "", ""), ("long", Styled("", "dim"), "")], head=("A", "B", "C"))
        terminal.summary(Mark.GOOD, SENTENCE, details=[SENTENCE], next_steps=[("bootbridge doctor", "test")])
        text = without_colour(out.text() if isinstance(out, PseudoTerminal) else out.getvalue())
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize(
    ("environment", "colour"),
    [
        (UTF8, True),
        (UTF8 | {"NO_COLOR": "1"}, False),
        (UTF8 | {"NO_COLOR": ""}, True),
        (UTF8 | {"TERM": "dumb"}, False),
    ],
)
def test_colour_only_where_it_is_wanted(environment: dict[str, str], colour: bool) -> None:
    terminal, screen = shown(80, environment)
    terminal.record([Mark.GOOD, Styled("name", "strong"), "text"])
    assert ("\x1b[" in screen.text()) == colour


@pytest.mark.parametrize(
    ("environment", "sign"),
    [
        (UTF8, "✓"),
        ({"TERM": "xterm"}, "✓"),
        ({"TERM": "xterm", "LANG": "de_DE.UTF-8"}, "✓"),
        ({"TERM": "xterm", "LANG": "de_DE.UTF-8", "LC_ALL": "C"}, "ok"),
        ({"TERM": "xterm", "LC_ALL": "POSIX"}, "ok"),
        ({"TERM": "xterm", "LC_CTYPE": "C.UTF-8", "LANG": "C"}, "✓"),
    ],
)
def test_marks_are_words_where_the_locale_cannot_show_signs(environment: dict[str, str], sign: str) -> None:
    terminal, screen = shown(80, environment | {"NO_COLOR": "1"})
    terminal.record([Mark.GOOD, "waiting …"])
    assert screen.text() == ("✓ waiting …\n" if sign == "✓" else "ok   waiting ...\n")


def test_a_character_that_the_encoding_lacks_is_escaped() -> None:
    data = io.BytesIO()
    terminal = Terminal(io.TextIOWrapper(data, encoding="ascii", write_through=True), environment=UTF8)
    terminal.line("node é → 😀")
    assert data.getvalue() == b"node \\u00e9 -> \\ud83d\\ude00\n"


HOSTILE = ["[red]agent[/red]", "[/]", "[link=https://x.example]y[/link]", ":warning:",
           "\x1b[31mred\x1b[0m", "\x1b]0;owned\x07", "a\rb",
           "a\nb", "a\x08b", "\x9b31m", "\u202eevil", "\x00", "tab\there"]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("columns", [0, 60])
def test_a_hostile_text_is_text(text: str, columns: int) -> None:
    """Neither markup nor control characters of a peer have an effect, in any place."""
    screen = PseudoTerminal(columns)
    out = screen.out if columns else io.StringIO()
    terminal = Terminal(out, environment=UTF8 | {"NO_COLOR": "1"})
    terminal.line(text)
    terminal.record([text, Styled(text, "bad"), text])
    terminal.table([(text, text)], head=(text, text))
    terminal.facts({text: text})
    terminal.verbatim(text)
    terminal.summary(Mark.BAD, text, details=[text], next_steps=[(text, text)])
    seen = screen.text() if columns else out.getvalue()  # type: ignore[union-attr]
    assert all(character.isprintable() or character == "\n" for character in seen)
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    assert squeezed(seen).count(squeezed(printable)) >= 14  # a long one is wrapped


def test_a_transient_line_is_overwritten_and_fits() -> None:
    terminal, screen = shown(40, UTF8 | {"NO_COLOR": "1"})
    terminal.transient("waiting: " + SENTENCE)
    terminal.line("done")
    waiting, erased, rest = screen.text().partition("\r\x1b[K")
    assert len(waiting) <= 39
    assert waiting.startswith("waiting: the agents'")
    assert (bool(erased), rest) == (True, "done\n")


def test_a_pipe_gets_no_transient_line() -> None:
    out = io.StringIO()
    Terminal(out, environment=UTF8).transient("waiting")
    assert out.getvalue() == ""


@pytest.mark.parametrize("columns", [0, 60, 120])
def test_commands_to_type_next_are_never_wrapped(columns: int) -> None:
    command = (
        "bootbridge node init 192.0.2.10 --spec cluster.yaml --policy policy.yaml --init-secret-file secret"
    )
    screen = PseudoTerminal(columns)
    out = screen.out if columns else io.StringIO()
    Terminal(out, environment=UTF8 | {"NO_COLOR": "1"}).summary(
        Mark.GOOD, "Done.", next_steps=[(command, "creates the cluster"), ("bootbridge status", "shows it")]
    )
    text = screen.text() if columns else out.getvalue()  # type: ignore[union-attr]
    assert f"\n  {command}" in text
    assert "creates the cluster" in text


def test_a_closed_pipe_is_reported_once() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        terminal = Terminal(out, environment=UTF8)
        with pytest.raises(BrokenPipeError):
            terminal.line("x")
        terminal.line("y")
        assert terminal.closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


def test_figures() -> None:
    assert [duration(seconds) for seconds in (-1, 0.26, 9.94, 42.4, 60, 185, 7800, 7200, 273600)] == [
        "0.0 s", "0.3 s", "9.9 s", "42 s", "1 min", "3 min 5 s", "2 h 10 min", "2 h", "3 d 4 h",
    ]  # fmt: skip
    assert [size(count) for count in (0, 1023, 1434, 20 << 20, 1023 << 20, 3.1 * (1 << 30), 1 << 50)] == [
        "0 B", "1023 B", "1.4 KiB", "20 MiB", "1.0 GiB", "3.1 GiB", "1024 TiB",
    ]  # fmt: skip
    assert (counted(1, "file"), counted(1200, "file"), counted(2, "entry", "entries")) == (
        "1 file",
        "1,200 files",
        "2 entries",
    )
