"""Builds all files of a release into one directory."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from release import bills, chart, environments, images, interpreters, notes, source
from release.commands import step
from release.interpreters import Interpreter
from release.wheels import WheelBuild

CHECKSUMS = "SHA256SUMS"


def build(root: Path, output: Path, chosen: Sequence[Interpreter]) -> None:
    """Builds HEAD of the repository `root`; `output` is replaced when all files are complete.

    Images contain the first interpreter of `chosen`.
    """
    folder = root / "build" / "release-work"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as scratch:
        exported = source.export(root, Path(scratch, "source"))
        made = Path(scratch, "made")
        made.mkdir(mode=0o755)
        print(f"release: Bootbridge {exported.version}, commit {exported.commit}")
        _say_missing(root, chosen)
        locks = exported.directory / "requirements"
        wheels = WheelBuild(exported.time, locks, folder / "environments")
        with step("source archive"):
            archive = wheels.source_archive(exported.directory, made, chosen[0])
        wheels.wheels(archive, made, chosen)
        images.build(made, wheels=made, locks=locks, folder=folder, interpreter=chosen[0], time=exported.time)
        if (exported.directory / chart.CHART).is_dir():
            with step("Helm chart"):
                chart.pack(exported.directory, made, exported.version, exported.time)
        with step("bills of materials"):
            bills.write_package_bill(made, locks / "runtime.lock", exported.version, exported.time)
            tools = environments.create(
                folder / "environments", "release", chosen[0], [locks / "release.lock"]
            )
            bills.validate(tools / "python", made)
        if not notes.write(exported.directory, made, exported.version):
            print(
                f"release: CHANGELOG.md has no section {exported.version}: the notes are made from Unreleased"
            )
        _write_checksums(made)
        _replace(output, made)
    for path in sorted(output.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path}")


def _say_missing(root: Path, chosen: Sequence[Interpreter]) -> None:
    versions = {each.version for each in chosen}
    missing = [version for version in interpreters.supported(root) if version not in versions]
    if missing:
        text = ", ".join(missing)
        print(f"release: no interpreter of Python {text}: it gets the wheel of plain Python (--python PATH)")


def _write_checksums(folder: Path) -> None:
    """In the format of sha256sum."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())
    ]
    (folder / CHECKSUMS).write_text("".join(lines))


def _replace(output: Path, made: Path) -> None:
    for path in made.iterdir():
        path.chmod(0o644)
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(made, output)
