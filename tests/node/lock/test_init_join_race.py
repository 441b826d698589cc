"""Init and join started together: exactly one wins, in any order of events.

More seeds: `python -m tests.node.lock.init_join_race --seeds 100000`.
"""

from __future__ import annotations

from collections import Counter

from tests.node.lock.init_join_race import race
from tests.support.node_environment import quiet

SEEDS = 2000


def test_exactly_one_of_init_and_join_wins_and_the_other_changes_nothing() -> None:
    """The checks are in `race`; both must win often for the test to be meaningful."""
    with quiet():
        winners = Counter(race(seed).winner for seed in range(SEEDS))
    assert set(winners) == {"init", "join"}
    assert min(winners.values()) > SEEDS / 10


def test_a_stop_request_competes_for_the_lock() -> None:
    """The process has either started nothing or finishes its flow."""
    with quiet():
        winners = Counter(race(seed, stop=True).winner for seed in range(400))
    assert set(winners) == {"init", "join", "none"}


def test_a_race_can_be_replayed_from_its_seed() -> None:
    with quiet():
        assert [race(seed) for seed in range(50)] == [race(seed) for seed in range(50)]
