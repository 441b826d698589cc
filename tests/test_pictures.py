"""The pictures of README and docs: small, self-contained, described, and not older than what they show."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.pictures import record
from tests.tools.pictures.catalogue import DRAWN, RUNS, sources_of
from tests.tools.pictures.terminal_svg import parse, render

ROOT = record.ROOT
MADE = sorted(picture for run in RUNS.values() for picture in run.pictures)
ALL = sorted([*MADE, *DRAWN])
BYTES_MAX = 150_000
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
ELEMENT = re.compile(r"<picture>.*?</picture>|<img [^>]*>", re.DOTALL)
ALT, FILE = re.compile(r'alt="([^"]*)"'), re.compile(r'(?:src|srcset)="([^"]*)"')


def embedded(document: Path) -> Iterator[tuple[str, Path]]:
    """Returns the description and the file of each picture; those of one <picture> share a description."""
    text = document.read_text()
    for description, target in IMAGE.findall(text):
        yield description, document.parent / target
    for element in ELEMENT.findall(text):
        (description,) = ALT.findall(element)
        for target in FILE.findall(element):
            yield description, document.parent / target


def test_every_file_of_the_folder_is_a_known_picture() -> None:
    found = {path.name for path in record.FOLDER.iterdir()} - {record.RECORD.name}
    assert found == set(ALL)
    assert sorted(record.read()) == MADE


@pytest.mark.parametrize("picture", MADE)
def test_no_picture_is_older_than_what_it_shows(picture: str) -> None:
    """After a change of its sources: make pictures; if it looks the same: --keep (tests/tools/pictures)."""
    current = record.digest(record.sources(sources_of(picture)))
    assert record.read()[picture] == current, f"make pictures, then look at docs/pictures/{picture}"


@pytest.mark.parametrize("picture", ALL)
def test_pictures_are_small(picture: str) -> None:
    assert 1000 < (record.FOLDER / picture).stat().st_size <= BYTES_MAX


@pytest.mark.parametrize("picture", [name for name in ALL if name.endswith(".svg")])
def test_drawings_are_well_formed_and_load_nothing(picture: str) -> None:
    """No scripts, no fonts or images from elsewhere; the drawing has a name for screen readers."""
    text = (record.FOLDER / picture).read_text()
    root = ET.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("aria-label") or root.get("aria-labelledby")
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not names & {"script", "image", "foreignObject", "use"}
    assert not re.findall(r"url\((?!#)|href=|@import|@font-face", text)


@pytest.mark.parametrize("picture", ALL)
def test_every_picture_is_embedded_with_a_description(picture: str) -> None:
    texts = [text for document in DOCUMENTS for text, path in embedded(document) if path.name == picture]
    assert texts, "embedded nowhere"
    assert all(len(text) > 20 for text in texts)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_embedded_picture_exists(document: Path) -> None:
    assert [str(path) for _, path in embedded(document) if not path.exists()] == []


def test_a_changed_source_is_noticed_and_a_comment_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of digests can fail."""
    monkeypatch.setattr(record, "ROOT", tmp_path)
    source = tmp_path / "verb.py"
    source.write_text("print('one')\n")
    before = record.digest([source])
    source.write_text("# why\n\nprint('one')\n")
    assert record.digest([source]) == before
    source.write_text("print('two')\n")
    assert record.digest([source]) != before
    with pytest.raises(FileNotFoundError):
        record.sources(["nothing/*.py"])


def test_terminal_output_keeps_columns_colours_and_hostile_text() -> None:
    """Escape sequences become styles, and text is escaped."""
    screen = "\x1b[32mok\x1b[39m   \x1b[1mname\x1b[0m <b>&\n\x1b[38;5;196mred\x1b[48;2;1;2;3m bg"
    lines = parse(screen)
    assert [(run.column, run.text) for run in lines[0]] == [(0, "ok"), (5, "name"), (9, " <b>&")]
    assert lines[0][1].style.bold
    assert [run.style.colour for run in lines[1]] == ["#ff0000", "#ff0000"]
    assert lines[1][1].style.background == "#010203"
    drawing = render(screen, title='a "title"', columns=40)
    assert "&lt;b&gt;&amp;" in drawing
    ET.fromstring(drawing)
