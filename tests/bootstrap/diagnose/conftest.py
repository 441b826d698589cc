"""The installed node that tests of `doctor` and `gather` share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bootstrap.diagnose.doctor_node import InstalledNode, installed_node


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledNode]:
    with installed_node(tmp_path_factory.mktemp("node")) as node:
        yield node
