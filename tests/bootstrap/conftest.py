"""Marks the test files that run real programs on simulated nodes as slow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bootstrap.render.shell_node import Network

# Not in `make test`, but in `make slow` and CI. Faster tests here cover the parts.
ON_NODES = frozenset(
    {
        "test_address",
        "test_certificates",
        "test_doctor",
        "test_doctor_destination",
        "test_doctor_openshift",
        "test_down",
        "test_gather",
        "test_gather_remote",
        "test_injected_node",
        "test_injected_node_faults",
        "test_manifests_run",
        "test_probe",
        "test_runner",
        "test_shell_apply",
        "test_shell_bootstrap_end",
        "test_shell_cleanup",
        "test_shell_server",
        "test_shell_setup",
        "test_up",
    }
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in ON_NODES and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.remove()
