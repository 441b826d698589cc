"""Texts cannot become HTML, in elements or attributes, whoever has written them."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.status_page.html import Markup, escape, markup, tag

HOSTILE = "<script>alert(1)</script>\"'&"


class Parsed(HTMLParser):
    """What a browser would make of it: elements, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


@settings(deadline=None)
@given(st.text(st.characters(categories=("L", "N", "P", "S"))))
def test_any_text_is_the_same_text_in_an_element_and_in_an_attribute(text: str) -> None:
    found = Parsed(tag("p", text, title=text))
    assert found.elements == [("p", [("title", text)])]
    assert found.text == text


@settings(deadline=None)
@given(st.text())
def test_no_text_adds_an_element_or_an_attribute(text: str) -> None:
    found = Parsed(tag("p", text, [text, (text,)], title=text))
    assert [(name, len(attributes)) for name, attributes in found.elements] == [("p", 1)]


def test_only_what_was_built_here_is_html() -> None:
    """A str is text, even if it looks like HTML."""
    assert tag("p", tag("b", "x")) == "<p><b>x</b></p>"
    assert tag("p", "<b>x</b>") == "<p>&lt;b&gt;x&lt;/b&gt;</p>"
    assert not isinstance(tag("b", "x") + "<script>", Markup)
    assert tag("p", tag("b", "x") + HOSTILE).startswith("<p>&lt;b&gt;")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", "a\\u202eb"),
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x00", "\\x00"),
        ("ä €", "ä €"),
    ],
)
def test_what_does_not_show_or_turns_text_around_is_shown_as_its_code(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_attributes() -> None:
    """`class_` is `class`, underscores are hyphens; None and False leave an attribute out."""
    made = tag("td", class_="number", aria_sort=None, hidden=True, open=False, data_label="a")
    assert made == '<td class="number" hidden data-label="a"></td>'
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_none_and_numbers_are_children_too() -> None:
    assert markup((1, None, ["a", (tag("i"),)])) == "1a<i></i>"
