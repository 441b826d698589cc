"""A copy of what a source archive is made from, in which a test builds it."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
FOLDERS = ("src", "build_backend")
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.egg-info")


def copy_source_tree(target: Path) -> Path:
    target.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(ROOT / name, target / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=_NOT_COPIED)
    return target
