"""`tar` in the lab's pods: what kubectl sends it unpacks, and what it packs any tar can read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ARCHIVER = [sys.executable, "-m", "bootbridge.lab.archiver"]


def archiver(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*ARCHIVER, *words], input=stdin, capture_output=True, timeout=60)


def test_a_file_comes_out_as_it_went_in(tmp_path: Path) -> None:
    """The words are those that `kubectl cp` uses, in both directions."""
    (tmp_path / "payload").write_bytes(bytes(range(256)) * 100)
    packed = archiver("cf", "-", str(tmp_path / "payload"))
    assert archiver("-xmf", "-", "-C", str(tmp_path / "copy"), stdin=packed.stdout).returncode == 0
    copy = tmp_path / "copy" / str(tmp_path / "payload").lstrip("/")
    assert copy.read_bytes() == (tmp_path / "payload").read_bytes()


def test_the_machines_own_tar_reads_what_it_packs(tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(b"content")
    packed = archiver("cf", "-", str(tmp_path / "payload"))
    listed = subprocess.run(["tar", "tf", "-"], input=packed.stdout, capture_output=True, timeout=60)
    assert listed.stdout.decode().strip() == str(tmp_path / "payload").lstrip("/")


@pytest.mark.parametrize("words", [[], ["tf", "-"], ["cf", "file"]])
def test_other_words_are_refused(words: list[str]) -> None:
    done = archiver(*words)
    assert done.returncode == 2
    assert b"only" in done.stderr
