"""Fixtures for tests that run a whole instance on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.local_instance import LocalInstance, RecordingApiServer


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[LocalInstance]:
    api = RecordingApiServer()
    yield LocalInstance(tmp_path, api)
    api.close()
