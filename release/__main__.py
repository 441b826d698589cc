"""The commands behind `make release`, `make release-cut`, `make release-check` and `make wheel`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from release import build, check, cut, interpreters
from release.commands import ReleaseError
from release.interpreters import Interpreter
from release.wheels import WheelBuild

ROOT = Path(__file__).parents[1]


def main() -> int:
    flags = _parser().parse_args()
    try:
        if flags.command == "check":
            check.check(ROOT, [word for path in flags.python for word in ("--python", path)])
        elif flags.command == "cut":
            version = cut.cut(ROOT, datetime.now(UTC).date())
            print(f"release: CHANGELOG.md has the section {version}; commit it, then run make release")
        elif flags.command == "wheels":
            _wheels(flags.output, _chosen(flags.python or [sys.executable]))
        else:
            build.build(ROOT, flags.output, _chosen(flags.python))
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _chosen(paths: list[str]) -> list[Interpreter]:
    """Returns the interpreters of --python, or those at hand."""
    found = interpreters.given(paths) or interpreters.at_hand(interpreters.supported(ROOT))
    if not found:
        raise ReleaseError("no supported Python found (--python PATH)")
    return found


def _wheels(output: Path, chosen: list[Interpreter]) -> None:
    """Builds wheels of the work tree as it is, also with uncommitted changes."""
    wheels = WheelBuild(int(time.time()), ROOT / "requirements", ROOT / "build/release-work/environments")
    for old in output.glob("*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="bootbridge-wheels-") as scratch:
        archive = wheels.source_archive(ROOT, Path(scratch), chosen[0])
        for path in wheels.wheels(archive, output, chosen):
            print(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m release", description="Build the files of a release; see docs/release.md."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    text = "name the changelog's section Unreleased after the version to release"
    commands.add_parser("cut", help=text, description=text)
    for name, text, folder in (
        ("build", "build all files of a release from HEAD", "build/release"),
        ("wheels", "build only the wheels, from the work tree as it is", "build/wheel"),
        ("check", "build the release twice and compare the bytes", ""),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "--python",
            metavar="PATH",
            action="append",
            default=[],
            help="an interpreter to build a compiled wheel for; repeat it (default: each supported one of "
            "PATH and pyenv; for wheels: the one that runs this)",
        )
        if folder:
            command.add_argument(
                "--output", metavar="DIR", type=Path, default=ROOT / folder, help=f"default {folder}"
            )
    return parser


if __name__ == "__main__":
    sys.exit(main())
