"""Release notes come out of the changelog; a cut gives the section its version and date."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from release import cut, notes, source
from release.commands import ReleaseError

CHANGELOG = """# Changelog

## Unreleased

### Fixed

- A leak.

## 0.1.0 (2026-01-02)

- The first.
"""
TODAY = date(2026, 11, 20)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of a repository that a cut and the notes read."""
    package = tmp_path / "src/bootbridge"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def test_a_section_ends_where_the_next_version_starts() -> None:
    assert notes.section(CHANGELOG, "Unreleased") == "### Fixed\n\n- A leak."
    assert notes.section(CHANGELOG, "0.1.0") == "- The first."
    assert notes.section(CHANGELOG, "0.1") == ""


def test_notes_before_the_cut_say_so(tree: Path) -> None:
    assert notes.write(tree, tree, "0.2.0") is False
    assert (tree / "RELEASE-NOTES.md").read_text() == (
        "# Bootbridge 0.2.0 (not released yet)\n\n### Fixed\n\n- A leak.\n"
    )


def test_a_cut_names_the_section_and_starts_a_new_one(tree: Path) -> None:
    assert cut.cut(tree, TODAY) == "0.2.0"
    changelog = (tree / "CHANGELOG.md").read_text()
    assert changelog == CHANGELOG.replace("## Unreleased\n", "## Unreleased\n\n## 0.2.0 (2026-11-20)\n")
    assert notes.write(tree, tree, "0.2.0") is True
    assert (tree / "RELEASE-NOTES.md").read_text() == "# Bootbridge 0.2.0\n\n### Fixed\n\n- A leak.\n"


def test_a_second_cut_is_refused(tree: Path) -> None:
    cut.cut(tree, TODAY)
    with pytest.raises(ReleaseError, match=r"section 0\.2\.0 exists already \(set __version__"):
        cut.cut(tree, TODAY)


@pytest.mark.parametrize("unreleased", ["", "## Unreleased\n\n"])
def test_nothing_to_release_is_refused(tree: Path, unreleased: str) -> None:
    (tree / "CHANGELOG.md").write_text(f"# Changelog\n\n{unreleased}## 0.1.0 (2026-01-02)\n\n- The first.\n")
    with pytest.raises(ReleaseError, match="section Unreleased is empty or missing"):
        cut.cut(tree, TODAY)
    with pytest.raises(ReleaseError, match=r"section 0\.2\.0 not found \(run make release-cut\)"):
        notes.write(tree, tree, "0.2.0")


def test_the_changelog_of_this_repository_has_notes(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    notes.write(root, tmp_path, source.version(root))
    text = (tmp_path / "RELEASE-NOTES.md").read_text()
    assert text.startswith(f"# Bootbridge {source.version(root)}")
    assert len(text.splitlines()) > 5
