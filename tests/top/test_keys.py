"""Bytes from a terminal become names of keys."""

from __future__ import annotations

import pytest

from bootbridge.top.keys import KeyDecoder


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"qs", ["q", "s"]),
        (b"\x1b[A\x1b[B\x1bOC\x1b[D", ["up", "down", "right", "left"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["pageup", "pagedown", "home", "end"]),
        (b"\t\x1b[Z\r\x7f\x03\x15", ["tab", "backtab", "enter", "backspace", "ctrl-c", "ctrl-u"]),
        ("ä€".encode(), ["ä", "€"]),
        (b"\x1b[200~q\x1b[201~", ["unknown", "q", "unknown"]),
        (b"\x1bq", ["esc", "q"]),
        (b"\xff\xfeq", ["q"]),
    ],
)
def test_keys_are_named(data: bytes, keys: list[str]) -> None:
    assert KeyDecoder().feed(data) == keys
    decoder = KeyDecoder()
    assert [key for byte in data for key in decoder.feed(bytes([byte]))] == keys


def test_escape_alone_is_a_key_when_nothing_follows() -> None:
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b") == []
    assert decoder.is_waiting
    assert decoder.flush() == ["esc"]
    assert decoder.feed(b"[A") == ["[", "A"]


def test_an_endless_sequence_is_not_kept() -> None:
    decoder = KeyDecoder()
    decoder.feed(b"\x1b[" + b"1" * 10_000)
    assert not decoder.is_waiting
