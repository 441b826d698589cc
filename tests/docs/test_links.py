"""Links of the documents lead to files and sections that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.docs.links import address_problem, broken_links
from tests.tools.docs.markdown import ROOT, Document, documents


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path) == []


PAGE = """\
# A page: `code` and more

## Twice
## Twice

[file](other.md) [section](other.md#part-one) [own](#twice-1) [code](#a-page-code-and-more)
[reference] ![picture](picture.svg) <img src="picture.svg" srcset="picture.svg 2x">
`[not](a-link.md)`

    [not](a-link.md)

[reference]: https://kubernetes.io/docs/
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/other.md").write_text("# Other\n\n## Part one\n")
    (tmp_path / "docs/picture.svg").write_text("<svg/>")
    (tmp_path / "docs/folder").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "build/made.md").write_text("")
    return tmp_path


def test_links_of_all_kinds_are_found(folder: Path) -> None:
    page = folder / "docs/page.md"
    page.write_text(PAGE)
    assert broken_links(page, folder) == []
    assert [link.target for link in Document.read(page).links] == [
        "other.md",
        "other.md#part-one",
        "#twice-1",
        "#a-page-code-and-more",
        "https://kubernetes.io/docs/",
        "picture.svg",
        "picture.svg",
        "picture.svg",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](missing.md)", "docs/page.md:1: missing.md: file not found"),
        ("Text\n\n[a](other.md#part-two)", "docs/page.md:3: other.md#part-two: anchor not found"),
        ("[a](#nowhere)", "anchor not found"),
        ("![a](missing.svg)", "file not found"),
        ('<img src="missing.svg">', "file not found"),
        ('<picture><source srcset="missing.webp 2x"></picture>', "file not found"),
        ("[a]\n\n[a]: missing.md", "file not found"),
        ("| a |\n|---|\n| [a](missing.md) |", "file not found"),
        ("[a](picture.svg#part)", "not Markdown"),
        ("[a](folder)", "a directory"),
        ("[a](/docs/other.md)", "absolute path"),
        ("[a](../../other.md)", "outside of the repository"),
        ("[a](../build/made.md)", "a built file"),
        ("[a](https://kubernetes)", "invalid host"),
    ],
)
def test_a_broken_link_is_found(folder: Path, text: str, problem: str) -> None:
    page = folder / "docs/page.md"
    page.write_text(text)
    (found,) = broken_links(page, folder)
    assert problem in found


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("https://github.com/kubernetes-sigs/apiserver-network-proxy", ""),
        ("https://example.com:8443/a?b=c#d", ""),
        ("http://127.0.0.1:8095/", ""),
        ("mailto:a@example.com", ""),
        ("http://example.com", "http (use https)"),
        ("https://", "invalid host ''"),
        ("https://exa mple.com", "invalid URL (blank)"),
        ("https://example.com:99999", "invalid URL (Port out of range 0-65535)"),
        ("https://[::1", "invalid URL (Invalid IPv6 URL)"),
        ("ftp://example.com", "scheme 'ftp' is not used here"),
        ("mailto:nobody", "invalid address"),
    ],
)
def test_the_form_of_an_address_is_checked_without_fetching_it(address: str, problem: str) -> None:
    assert address_problem(address) == problem
