"""Skips a test whose requirements are missing; fails it where CI requires it to run."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def not_run(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(f"NOT RUN: {reason}")


def require_program(name: str, package: str = "") -> None:
    """For fixtures and helpers, which a mark does not reach."""
    if shutil.which(name) is None:
        not_run(_absent(name, package))


def needs_program(name: str, package: str = "") -> pytest.MarkDecorator:
    """Marks tests that call a program: skipped where it is missing; under CI they run and fail without it."""
    missing = shutil.which(name) is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(missing, reason=f"NOT RUN: {_absent(name, package)}")


def _absent(name: str, package: str) -> str:
    return f"{name} not found (on Debian: apt-get install {package or name})"
