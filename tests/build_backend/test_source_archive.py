"""Source archives of the same files are equal, and complete."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bootbridge import __version__
from tests.support.source_tree import ROOT, copy_source_tree

pytestmark = pytest.mark.slow

BUILD = "import sys, build_backend; build_backend.build_sdist(sys.argv[1])"


def build(tree: Path, output: Path, umask: int) -> Path:
    output.mkdir()
    subprocess.run(
        [sys.executable, "-c", BUILD, str(output)],
        cwd=tree,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
        umask=umask,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (found,) = output.iterdir()
    return found


def test_directory_umask_and_times_do_not_change_the_bytes(tmp_path: Path) -> None:
    first = copy_source_tree(tmp_path / "first")
    second = copy_source_tree(tmp_path / "elsewhere" / "second")
    for path in second.rglob("*.py"):
        path.chmod(0o600)
        os.utime(path, (1, 1_600_000_000))
    one = build(first, tmp_path / "one", 0o022)
    other = build(second, tmp_path / "other", 0o077)
    assert one.name == other.name == f"bootbridge-{__version__}.tar.gz"
    assert one.read_bytes() == other.read_bytes()


def test_it_contains_every_file_of_the_package_and_what_builds_it(tmp_path: Path) -> None:
    archive = build(copy_source_tree(tmp_path / "tree"), tmp_path / "out", 0o022)
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src/bootbridge", "build_backend")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - names == set()
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "PKG-INFO"} <= names
    assert not [name for name in names if name.startswith("tests")]
