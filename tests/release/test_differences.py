"""`make release-check` names what differs between two builds, also inside archives."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from release.check import check, differences
from tests.support.not_run import needs_program


@pytest.fixture
def builds(tmp_path: Path) -> tuple[Path, Path]:
    found = tmp_path / "first", tmp_path / "second"
    for folder in found:
        folder.mkdir()
        (folder / "SHA256SUMS").write_text("same\n")
    return found


def wheel(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)


def tarball(path: Path, mode: int, time: int) -> None:
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("layer")
        info.size, info.mode, info.mtime = 1, mode, time
        tar.addfile(info, io.BytesIO(b"x"))


def test_equal_builds_have_no_differences(builds: tuple[Path, Path]) -> None:
    assert differences(*builds) == []


def test_a_file_of_one_build_only_is_named(builds: tuple[Path, Path]) -> None:
    (builds[1] / "extra.whl").write_bytes(b"")
    assert differences(*builds) == ["extra.whl: exists only once"]


def test_a_changed_member_of_a_wheel_is_named(builds: tuple[Path, Path]) -> None:
    wheel(builds[0] / "a.whl", same=b"1", other=b"1")
    wheel(builds[1] / "a.whl", same=b"1", other=b"2")
    assert differences(*builds) == ["a.whl: other"]


@pytest.mark.parametrize("changed", [{"mode": 0o600, "time": 1}, {"mode": 0o644, "time": 2}])
def test_mode_and_time_of_a_member_are_compared(builds: tuple[Path, Path], changed: dict[str, int]) -> None:
    tarball(builds[0] / "a.tar", mode=0o644, time=1)
    tarball(builds[1] / "a.tar", **changed)
    assert differences(*builds) == ["a.tar: layer"]


def test_a_changed_file_that_is_no_archive_is_named(builds: tuple[Path, Path]) -> None:
    (builds[1] / "SHA256SUMS").write_text("other\n")
    assert differences(*builds) == ["SHA256SUMS: the bytes differ"]


# Writes the commit that it builds; then the repository gets another one.
BUILD = """
import pathlib, subprocess, sys
output = pathlib.Path(sys.argv[-1])
output.mkdir(parents=True)
commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, check=True).stdout
(output / "commit").write_bytes(commit)
subprocess.run([*GIT, "commit", "--quiet", "--allow-empty", "--message", "later"], check=True)
"""


@needs_program("git")
def test_a_commit_during_the_first_build_is_in_neither(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example"]
    program = repository / "release" / "__main__.py"
    program.parent.mkdir(parents=True)
    program.write_text(BUILD.replace("GIT", repr(git)))
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "first"], check=True)
    check(repository, [])
