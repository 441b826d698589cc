"""Lines become escape sequences for their styles."""

from __future__ import annotations

import pytest
from rich.text import Text

from bootbridge.top.screen import ansi, can_control_terminal
from bootbridge.top.text import ascii_text
from bootbridge.top.view import LinkState, frame
from bootbridge.top.view_state import ViewState
from tests.top.documents import HOSTILE, agent, history, server_document


@pytest.mark.parametrize(
    ("line", "coloured", "plain"),
    [
        (Text("x"), "x", "x"),
        (Text("x", "bold red"), "\x1b[1;31mx\x1b[0m", "\x1b[1mx\x1b[0m"),
        (Text.assemble("a", ("b", "green")), "a\x1b[32mb\x1b[0m", "ab"),
        (Text.assemble(("a", "reverse"), style="red"), "\x1b[7;31ma\x1b[0m", "\x1b[7ma\x1b[0m"),
    ],
)
def test_styles_become_sequences_and_no_color_leaves_bold_and_reverse(
    line: Text, coloured: str, plain: str
) -> None:
    assert ansi(line, no_color=False) == coloured
    assert ansi(line, no_color=True) == plain


def test_markup_in_a_text_of_a_peer_is_text() -> None:
    assert ansi(Text("[red]x[/red] :warning:"), no_color=False) == "[red]x[/red] :warning:"


def test_a_lost_connection_is_red() -> None:
    link = LinkState("x", 1.0, error="connection refused")
    shown = frame(history(server_document()), ViewState(), link, 80, 24)
    assert ansi(shown.lines[1], no_color=False).startswith("\x1b[1;31m✗ connection lost")


def test_the_only_sequences_of_a_frame_are_ours() -> None:
    """Styles and nothing else: no cursor movement, title or device request from a peer's text."""
    rows = {"agents": [agent(1, id=HOSTILE, node=HOSTILE)], "serverID": HOSTILE}
    shown = frame(history(server_document() | rows), ViewState(), LinkState(HOSTILE, 1.0), 200, 40)
    drawn = "".join(ansi(line, no_color=False) for line in shown.lines[1:])
    assert [part for part in drawn.split("\x1b")[1:] if not part.lstrip("[0123456789;").startswith("m")] == []


def test_a_locale_without_unicode_gets_characters_of_the_same_width() -> None:
    for shown in ("✓ ready", "a…", "↑↓←→", "▁▂▃▄▅▆▇█", "漢"):
        assert ascii_text(shown).isascii()
        assert len(ascii_text(shown)) == len(shown)


@pytest.mark.parametrize("name", ["dumb", ""])
def test_a_dumb_terminal_gets_no_live_view(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    assert can_control_terminal({"TERM": "xterm"})
    assert not can_control_terminal({"TERM": name})
