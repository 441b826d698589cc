"""Fixtures of several files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootbridge.lab.namespaces import NodeNamespaces
from tests.support.not_run import not_run, require_program


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[NodeNamespaces]:
    if os.geteuid() != 0:
        not_run("namespaces and mounts need root")
    require_program("ip", "iproute2")
    made = NodeNamespaces.create("machine", tmp_path / "machine")
    yield made
    made.end()
