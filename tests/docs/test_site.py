"""The sources of the site and the checks of its pages. `make docs` builds the site itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.docs.markdown import ROOT, Document, documents
from tests.tools.docs.site_links import problems
from tests.tools.docs.stage import NotInNavigation, linked_files, navigation, stage, with_languages

DOORS = ["Try", "Install", "Operate", "Contribute"]


def test_the_index_has_four_doors_and_leads_to_every_document() -> None:
    found = navigation(ROOT, documents())
    assert list(found) == DOORS
    assert {path for paths in found.values() for path in paths} | {ROOT / "docs/index.md"} == set(documents())


def test_a_document_without_a_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(
        "# Index\n\n[a](lost.md)\n\n## Door\n\n[a](a.md) [x](https://a.example)\n"
    )
    for name in ("a.md", "lost.md"):
        (tmp_path / "docs" / name).write_text("# Page\n")
    with pytest.raises(NotInNavigation, match=r"docs/index\.md: no link to docs/lost\.md"):
        navigation(tmp_path, documents(tmp_path))
    (tmp_path / "docs/lost.md").unlink()
    assert navigation(tmp_path, documents(tmp_path)) == {"Door": {tmp_path / "docs/a.md": "a"}}


def test_the_sources_contain_documents_pictures_and_reference(tmp_path: Path) -> None:
    stage(tmp_path / "source", {"index.md": "# Reference\n", "up.md": "# up\n"})
    written = {str(path.relative_to(tmp_path / "source")) for path in (tmp_path / "source").rglob("*.*")}
    assert written >= {str(path.relative_to(ROOT)) for path in [*documents(), *linked_files(documents())]}
    assert written >= {"conf.py", "_static/site.css", "_extra/index.html", "docs/reference/up.md"}
    index = (tmp_path / "source/docs/index.md").read_text()
    assert [line for line in index.splitlines() if line.startswith(":caption:")] == [
        f":caption: {door}" for door in DOORS
    ]
    assert "reference/index.md" in index
    assert "up.md" in (tmp_path / "source/docs/reference/index.md").read_text()


def test_indented_blocks_get_a_language_and_others_stay(tmp_path: Path) -> None:
    """Commands in colours, output as text; the rest of the page is untouched."""
    text = (
        "# A\n\n    one \\\n        two\n\n    three\n\n<!-- output -->\n\n    out\n\n"
        "* item\n\n        in a list\n\n```yaml\na: 1\n```\n\n```mermaid\nx\n```\n"
    )
    expected = (
        "# A\n\n```bash\none \\\n    two\n\nthree\n```\n\n<!-- output -->\n\n```text\nout\n```\n\n"
        "* item\n\n        in a list\n\n```yaml\na: 1\n```\n\n```text\nx\n```\n"
    )
    assert with_languages(Document(tmp_path / "page.md", text)) == expected


PAGE = """<html><head><link rel="stylesheet" href="style.css"><link rel="next" href="other.html">
<script src="script.js"></script></head><body id="top">
<a href="other.html#part">a</a> <a href="#top">b</a> <a href="https://example.com">c</a>
<a href="folder/">d</a>
<img src="data:image/png;base64,AA=="> {more}</body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/index.html").write_text("")
    (tmp_path / "other.html").write_text('<h2 id="part">a</h2>')
    (tmp_path / "style.css").write_text("a { background: url(data:image/svg+xml,x) }")
    (tmp_path / "script.js").write_text("")
    (tmp_path / "page.html").write_text(PAGE.format(more=""))
    return tmp_path


def test_a_complete_site_has_no_problem(site: Path) -> None:
    assert problems(site) == []


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ('<a href="missing.html">', "page.html: missing.html: file not found"),
        ('<a href="other.html#gone">', "page.html: other.html#gone: anchor not found"),
        ('<a href="#gone">', "page.html: #gone: anchor not found"),
        ('<img src="missing.svg">', "page.html: missing.svg: file not found"),
        ('<img srcset="missing.webp 2x">', "page.html: missing.webp: file not found"),
        ('<script src="https://cdn.example/a.js"></script>', "page.html: loads https://cdn.example/a.js"),
        ('<script src="//cdn.example/a.js"></script>', "page.html: loads //cdn.example/a.js"),
        (
            '<link rel="stylesheet" href="https://fonts.example/a">',
            "page.html: loads https://fonts.example/a",
        ),
        ('<link rel="preconnect" href="https://fonts.example">', "page.html: loads https://fonts.example"),
        ('<iframe src="https://a.example"></iframe>', "page.html: loads https://a.example"),
        ('<p style="background: url(https://a.example/b)">', "page.html: loads https://a.example/b"),
    ],
)
def test_a_broken_link_or_an_outside_request_of_a_page_is_found(site: Path, more: str, problem: str) -> None:
    (site / "page.html").write_text(PAGE.format(more=more))
    assert problems(site) == [problem]


@pytest.mark.parametrize(
    ("style", "problem"),
    [
        ('@import "https://fonts.example/a.css";', "style.css: loads https://fonts.example/a.css"),
        ("a { src: url('https://fonts.example/a.woff') }", "style.css: loads https://fonts.example/a.woff"),
        ("a { src: url(missing.woff) }", "style.css: missing.woff: file not found"),
    ],
)
def test_an_outside_request_of_a_style_sheet_is_found(site: Path, style: str, problem: str) -> None:
    (site / "style.css").write_text(style)
    assert problems(site) == [problem]
