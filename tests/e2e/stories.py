"""Which end-to-end tests belong together: each story has labs of its own, and may run beside the others."""

from __future__ import annotations

from dataclasses import dataclass

_E2E, _INSTANCES, _LAB = "tests/e2e", "tests/e2e/bootstrapper", "tests/lab"
_PAIRINGS = f"{_E2E}/test_4_every_pairing.py"
_LEFTOVERS = f"{_LAB}/test_leaves_nothing.py"


@dataclass(frozen=True)
class Story:
    """Files in the order in which they are told, but for tests with `without` in their name."""

    name: str
    paths: tuple[str, ...]
    # The inotify instances that its labs hold at a time, of which a machine gives each user 128 or so: a
    # kubelet holds seven, a kube-apiserver six, a containerd one, a kube-controller-manager up to seven; and
    # some more for what comes and goes, as a followed log or a kube-apiserver that takes over from another.
    watches: int
    without: str = ""

    @property
    def words(self) -> list[str]:
        """What pytest is told."""
        return [*self.paths, *(["-k", f"not {self.without}"] if self.without else [])]

    def tells(self, test: str) -> bool:
        """Whether a test, by its name as pytest has it, is one of this story."""
        return test.startswith(self.paths) and not (self.without and self.without in test)


# In the order in which they begin: where 128 inotify instances are all there are, it leaves few unused.
STORIES = (
    Story(
        "http-connect",
        (_PAIRINGS, f"{_E2E}/test_6_several_servers.py", f"{_E2E}/test_7_down.py"),
        watches=42,
        without="GRPC",
    ),
    Story(
        "grpc",
        (
            f"{_E2E}/test_1_without_the_bridge.py",
            f"{_E2E}/test_2_the_bridge.py",
            f"{_E2E}/test_3_before_the_first_agent.py",
            f"{_E2E}/test_5_tokens.py",
            _PAIRINGS,
        ),
        watches=36,
        without="HTTPConnect",
    ),
    Story("faults", (f"{_LAB}/test_faults.py",), watches=34),
    Story("instances-bridged", (f"{_INSTANCES}/test_7_with_the_bridge.py",), watches=34),
    Story("families", (f"{_LAB}/test_families.py",), watches=28),
    Story(
        "instances",
        (
            f"{_INSTANCES}/test_1_a_cluster_of_blank_instances.py",
            f"{_INSTANCES}/test_2_what_is_refused.py",
            f"{_INSTANCES}/test_3_tokens.py",
            f"{_INSTANCES}/test_4_join_time.py",
            f"{_INSTANCES}/test_5_reboot.py",
            f"{_INSTANCES}/test_6_crash.py",
        ),
        watches=60,
    ),
    # Mostly a kube-apiserver that is waited for: beside the others it costs little.
    Story("demonstration", (f"{_LEFTOVERS}::test_the_demonstration_holds_and_leaves_nothing",), watches=28),
    Story("leftovers", (_LEFTOVERS,), watches=34, without="demonstration"),
)
