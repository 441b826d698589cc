"""Groups the end-to-end tests into scenarios: each has separate labs, so they can run concurrently."""

from __future__ import annotations

from dataclasses import dataclass

_E2E, _INSTANCES, _LAB = "tests/e2e", "tests/e2e/bootstrapper", "tests/lab"
_PAIRINGS = f"{_E2E}/test_4_all_pairings.py"
_LEFTOVERS = f"{_LAB}/test_lab_leftovers.py"


@dataclass(frozen=True)
class LabScenario:
    """Test files in their order, without the tests that have `without` in their name."""

    name: str
    paths: tuple[str, ...]
    # The inotify instances that its labs hold at a time; many machines allow 128 per user. A kubelet holds 7,
    # a kube-apiserver 6, a containerd 1, a kube-controller-manager up to 7. Some are added for short-lived
    # ones: a followed log, or a kube-apiserver that overlaps with its successor.
    inotify_instances: int
    without: str = ""

    @property
    def pytest_arguments(self) -> list[str]:
        return [*self.paths, *(["-k", f"not {self.without}"] if self.without else [])]

    def contains(self, test: str) -> bool:
        """Returns whether a test, by its pytest node id, belongs to this scenario."""
        return test.startswith(self.paths) and not (self.without and self.without in test)


# In starting order: with 128 inotify instances, this order leaves few of them unused.
SCENARIOS = (
    LabScenario(
        "http-connect",
        (_PAIRINGS, f"{_E2E}/test_6_two_servers.py", f"{_E2E}/test_7_removal.py"),
        inotify_instances=42,
        without="GRPC",
    ),
    LabScenario(
        "grpc",
        (
            f"{_E2E}/test_1_without_tunnel.py",
            f"{_E2E}/test_2_with_tunnel.py",
            f"{_E2E}/test_3_without_agents.py",
            f"{_E2E}/test_5_agent_tokens.py",
            _PAIRINGS,
        ),
        inotify_instances=36,
        without="HTTPConnect",
    ),
    LabScenario("faults", (f"{_LAB}/test_faults.py",), inotify_instances=34),
    # Two more kube-apiservers.
    LabScenario("migration", (f"{_E2E}/migration",), inotify_instances=46),
    LabScenario("instances-tunnel", (f"{_INSTANCES}/test_7_with_tunnel.py",), inotify_instances=34),
    LabScenario("permanent", (f"{_E2E}/test_8_permanent.py",), inotify_instances=42),
    LabScenario("ip-families", (f"{_LAB}/test_ip_families.py",), inotify_instances=28),
    LabScenario(
        "instances",
        (
            f"{_INSTANCES}/test_1_init_and_join.py",
            f"{_INSTANCES}/test_2_rejected_joins.py",
            f"{_INSTANCES}/test_3_join_tokens.py",
            f"{_INSTANCES}/test_4_join_time.py",
            f"{_INSTANCES}/test_5_reboot.py",
            f"{_INSTANCES}/test_6_crash.py",
        ),
        inotify_instances=60,
    ),
    # It mostly waits for a kube-apiserver, so it uses little CPU time.
    LabScenario("demo", (f"{_LEFTOVERS}::test_lab_demo_succeeds_and_leaves_nothing",), inotify_instances=28),
    LabScenario("tutorial", (f"{_E2E}/test_9_tutorial.py",), inotify_instances=28),
    LabScenario("leftovers", (_LEFTOVERS,), inotify_instances=34, without="demo"),
)
