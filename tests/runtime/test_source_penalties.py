"""How long a source waits for its handshakes after faults."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from bootbridge.runtime.source_penalties import (
    DELAY_SECONDS_MAX,
    DELAY_SECONDS_MIN,
    FAULTS_MAX,
    FLOOD_FAULTS,
    FREE_FAULTS,
    MEMORY_SECONDS,
    SOURCES_MAX,
    SourcePenalties,
)

LONGEST = DELAY_SECONDS_MAX * 1.25


class Sources:
    def __init__(self) -> None:
        self.now = 1000.0
        self.penalties = SourcePenalties(lambda: self.now, Random(1))

    def faults(self, source: str, times: int) -> None:
        for _ in range(times):
            self.penalties.fault(source)


@pytest.fixture
def sources() -> Sources:
    return Sources()


def test_a_few_failed_handshakes_have_no_consequence(sources: Sources) -> None:
    sources.faults("a", FREE_FAULTS)
    assert sources.penalties.delay("a") == 0
    sources.faults("a", 1)
    assert 0 < sources.penalties.delay("a") <= DELAY_SECONDS_MIN * 1.25
    assert sources.penalties.delay("b") == 0, "other sources never wait"


def test_each_fault_doubles_the_delay_up_to_its_maximum(sources: Sources) -> None:
    sources.faults("a", FREE_FAULTS + 1)
    delays = []
    for _ in range(100):
        delays.append(sources.penalties.delay("a"))
        sources.faults("a", 1)
    assert all(after > 1.1 * before for before, after in pairwise(delays[:6]))
    assert DELAY_SECONDS_MAX * 0.75 <= delays[-1] <= LONGEST


def test_one_flood_is_enough(sources: Sources) -> None:
    """Also of an agent that was admitted before it began."""
    for _ in range(3):
        sources.penalties.admitted("a")
        sources.penalties.fault("a", FLOOD_FAULTS)
        assert sources.penalties.delay("a") > 0
    assert sources.penalties.delay("a") >= DELAY_SECONDS_MAX * 0.75


def test_admitted_agents_make_up_for_failed_handshakes(sources: Sources) -> None:
    """A thousand agents behind one address, of which some fail."""
    for _ in range(500):
        sources.penalties.fault("a")
        sources.penalties.admitted("a")
        sources.penalties.admitted("a")
    assert sources.penalties.delay("a") == 0
    assert len(sources.penalties) == 0


def test_faults_are_forgotten(sources: Sources) -> None:
    sources.faults("a", 10 * FAULTS_MAX)
    sources.now += MEMORY_SECONDS - 1
    assert sources.penalties.delay("a") > 0
    sources.now += 1
    assert sources.penalties.delay("a") == 0
    sources.faults("a", 1)
    assert sources.penalties.delay("a") == 0, "it starts again"


def test_the_memory_outlives_the_longest_delay() -> None:
    assert LONGEST < MEMORY_SECONDS


def test_the_table_is_bounded_and_keeps_the_latest(sources: Sources) -> None:
    for number in range(3 * SOURCES_MAX):
        sources.penalties.fault("late", FLOOD_FAULTS)
        sources.penalties.fault(f"s{number}", FLOOD_FAULTS)
    assert len(sources.penalties) == SOURCES_MAX
    assert sources.penalties.delay("late") > 0
    assert sources.penalties.delay("s0") == 0
