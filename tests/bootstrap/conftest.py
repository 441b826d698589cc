"""Which of these tests take their time: those that run real programs on nodes of their own."""

from __future__ import annotations

import pytest

# Not in `make test`, but in `make slow` and CI. What they prove in whole, others here prove in parts.
ON_NODES = frozenset(
    {
        "test_address",
        "test_certificates",
        "test_doctor",
        "test_doctor_destination",
        "test_doctor_openshift",
        "test_down",
        "test_runner",
        "test_probe",
        "test_gather",
        "test_gather_remote",
        "test_injected_node",
        "test_manifests_run",
        "test_shell_cleanup",
        "test_shell_setup",
        "test_up",
    }
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in ON_NODES and item.path.parent.name == "bootstrap":
            item.add_marker(pytest.mark.slow)
