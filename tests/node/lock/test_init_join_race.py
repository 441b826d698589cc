"""Init against join, started together: one decision, whatever the order of things.

More of them: `python -m tests.node.lock.init_join_race --seeds 100000`.
"""

from __future__ import annotations

from collections import Counter

from tests.node.lock.init_join_race import race
from tests.support.node_environment import quiet

SEEDS = 2000


def test_init_against_join_has_exactly_one_winner_and_the_loser_leaves_nothing() -> None:
    """The checks are in `race`; here both must have won often, or the races were none."""
    with quiet():
        winners = Counter(race(seed).winner for seed in range(SEEDS))
    assert set(winners) == {"init", "join"}
    assert min(winners.values()) > SEEDS / 10


def test_a_stop_request_is_a_third_contender() -> None:
    """Asked to stop, the process has either begun nothing or finishes what it began."""
    with quiet():
        winners = Counter(race(seed, stop=True).winner for seed in range(400))
    assert set(winners) == {"init", "join", "nobody"}


def test_a_race_can_be_replayed_from_its_seed() -> None:
    with quiet():
        assert [race(seed) for seed in range(50)] == [race(seed) for seed in range(50)]
