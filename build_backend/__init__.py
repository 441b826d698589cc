"""The build backend for pip and other installers: setuptools, which compiles the data path with mypyc.

A wheel is compiled wherever a C extension can be built for this Python. Otherwise it contains the same source
as plain Python; the reason is printed, and recorded in the wheel for `bootbridge version`.
The variable BOOTBRIDGE_COMPILE overrides this: 0 never compiles, 1 fails if it cannot compile.

An editable installation is never compiled: it runs the files of the source tree.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

from build_backend import c_compiler, source_archive

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = Mapping[str, object] | None
VARIABLE = "BOOTBRIDGE_COMPILE"
# mypyc, and the typed packages that the compiled modules import: without them their values would be untyped.
# requirements/build.lock has the versions that our own wheels are built with.
COMPILE_REQUIREMENTS = ("mypy>=1.16,<3", "hpack>=4.2,<5", "h11>=0.16,<1")


@dataclass(frozen=True)
class Build:
    """What setup.py builds."""

    directory: str = "build"
    compiled: bool = False
    plain_reason: str = ""  # for the record in a wheel that is not compiled


# setup.py reads it; setuptools runs setup.py for each hook.
current = Build()


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    wanted = [] if _plain_reason() else list(COMPILE_REQUIREMENTS)
    return [*build_meta.get_requires_for_build_wheel(config_settings), *wanted]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    def build(*, plain_reason: str = "") -> str:
        global current
        # Not below the source tree, where a file of an earlier build would end up in the wheel.
        with tempfile.TemporaryDirectory(prefix="bootbridge-build-") as scratch:
            current = Build(scratch, not plain_reason, plain_reason)
            return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)

    reason = _plain_reason()
    if not reason:
        _announce(f"bootbridge: compiling, takes one to three minutes ({VARIABLE}=0 installs plain Python)")
        try:
            return build()
        except (Exception, SystemExit) as error:  # mypyc exits when it reports an error
            if _variable() == "1":
                raise
            print(f"bootbridge: {error}", file=sys.stderr)
            reason = "compilation failed (pip install -v shows the error)"
    if _variable() != "0":
        _announce(f"bootbridge: installed as plain Python, not compiled: {reason}")
    return build(plain_reason=reason)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    name = build_meta.build_sdist(sdist_directory, config_settings)
    source_archive.make_reproducible(os.path.join(sdist_directory, name))
    return name


def _variable() -> str:
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        sys.exit(f"bootbridge: {VARIABLE}: invalid value {value!r} (0: never compile, 1: compile or fail)")
    return value


def _plain_reason() -> str:
    """Returns why the wheel is not compiled; empty if it is."""
    value = _variable()
    if value == "0":
        return f"built with {VARIABLE}=0"
    problem = c_compiler.problem()
    if problem and value == "1":
        sys.exit(f"bootbridge: {VARIABLE}=1: {problem}")
    return problem


def _announce(line: str) -> None:
    """Prints to stderr, which pip shows with -v only, and to the terminal, if there is one."""
    print(line, file=sys.stderr)
    if not sys.stderr.isatty():
        with suppress(OSError), open("/dev/tty", "w") as terminal:
            terminal.write(f"\n{line}\n")
