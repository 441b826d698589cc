"""The `tar` of the lab's pods: unpacks what kubectl sends, and packs what any tar reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ARCHIVER = [sys.executable, "-m", "bootbridge.lab.archiver"]


def archiver(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*ARCHIVER, *words], input=stdin, capture_output=True, timeout=60)


def test_packed_file_unpacks_unchanged(tmp_path: Path) -> None:
    """With the arguments that `kubectl cp` uses."""
    (tmp_path / "payload").write_bytes(bytes(range(256)) * 100)
    packed = archiver("cf", "-", str(tmp_path / "payload"))
    assert archiver("-xmf", "-", "-C", str(tmp_path / "copy"), stdin=packed.stdout).returncode == 0
    copy = tmp_path / "copy" / str(tmp_path / "payload").lstrip("/")
    assert copy.read_bytes() == (tmp_path / "payload").read_bytes()


def test_system_tar_reads_the_archive(tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(b"content")
    packed = archiver("cf", "-", str(tmp_path / "payload"))
    listed = subprocess.run(["tar", "tf", "-"], input=packed.stdout, capture_output=True, timeout=60)
    assert listed.stdout.decode().strip() == str(tmp_path / "payload").lstrip("/")


@pytest.mark.parametrize("words", [[], ["tf", "-"], ["cf", "file"]])
def test_other_arguments_are_rejected(words: list[str]) -> None:
    done = archiver(*words)
    assert done.returncode == 2
    assert b"unsupported arguments" in done.stderr
