"""Which connection is closed when a listener has too many that are not admitted."""

from __future__ import annotations

from bootbridge.runtime.connection_limits import ConnectionLimits

GRACE = 2.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0


def limits(total: int = 8, per_source: int = 4) -> tuple[ConnectionLimits[str], Clock]:
    clock = Clock()
    return ConnectionLimits(total, per_source, lambda: clock.now, grace_seconds=GRACE), clock


def test_the_oldest_connection_of_a_source_leaves_for_its_next_one() -> None:
    table, clock = limits()
    for number in range(4):
        assert table.add("a", f"a{number}") is None
    clock.now = GRACE
    assert table.add("a", "a4") == "a0"
    assert table.add("a", "a5") == "a1"
    assert len(table) == 4


def test_within_the_grace_period_the_newest_one_leaves() -> None:
    """A burst does not evict the connections that are about to be admitted."""
    table, clock = limits()
    for number in range(4):
        table.add("a", f"a{number}")
    clock.now = GRACE - 0.1
    assert table.add("a", "a4") == "a4"
    assert len(table) == 4


def test_a_full_table_evicts_from_the_source_with_the_most() -> None:
    """Also if others are older."""
    table, clock = limits(total=5, per_source=4)
    table.add("b", "b0")
    for number in range(4):
        table.add("a", f"a{number}")
    clock.now = GRACE
    assert table.add("c", "c0") == "a0"
    assert table.add("d", "d0") == "a1"
    assert table.add("e", "e0") in ("a2", "b0")  # now no source has more than another


def test_one_source_never_keeps_another_out() -> None:
    """Its share is below the total: the first connection of another source always has a place."""
    table, _ = limits(total=8, per_source=4)
    for number in range(1000):
        table.add("attacker", f"attacker{number}")
    assert table.add("agent", "agent0") is None


def test_many_sources_are_bounded_too() -> None:
    table, clock = limits(total=8, per_source=4)
    for number in range(100):
        clock.now += GRACE
        table.add(f"source{number}", f"connection{number}")
    assert len(table) == 8
    assert table.oldest() is not None
    assert len(table) == 7


def test_an_admitted_connection_no_longer_counts() -> None:
    table, _ = limits(per_source=1)
    for number in range(10):
        assert table.add("a", f"a{number}") is None
        table.remove("a", f"a{number}")
        table.remove("a", f"a{number}")  # twice: without effect
    assert len(table) == 0
    assert table.oldest() is None
