"""The queue that gives every source the same share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bootbridge.kube.fair_queue import FairQueue


def test_sources_take_turns() -> None:
    queue: FairQueue[str] = FairQueue(10)
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        assert queue.add(item[0], item) is None
    assert [queue.take() for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]


def test_the_largest_source_loses_its_newest_item_when_it_is_full() -> None:
    queue: FairQueue[str] = FairQueue(3)
    for item in ("a1", "a2", "a3"):
        queue.add("a", item)
    assert queue.add("a", "a4") == "a4"
    assert queue.add("b", "b1") == "a3"
    assert queue.add("c", "c1") == "a2"
    assert queue.add("d", "d1") == "d1"
    assert [queue.take() for _ in range(4)] == ["a1", "b1", "c1", None]


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "remove"]), st.sampled_from("abcd")), max_size=200))
def test_it_holds_what_was_added_and_not_taken(steps: list[tuple[str, str]]) -> None:
    """Never more than the bound; the order of one source is kept."""
    queue: FairQueue[tuple[str, int]] = FairQueue(5)
    kept: list[tuple[str, int]] = []
    for number, (step, source) in enumerate(steps):
        if step == "add":
            kept.append((source, number))
            lost = queue.add(source, (source, number))
            if lost is not None:
                kept.remove(lost)
        elif step == "take":
            taken = queue.take()
            assert (taken is None) == (not kept)
            if taken is not None:
                assert taken == next(each for each in kept if each[0] == taken[0])
                kept.remove(taken)
        else:
            oldest = next((each for each in kept if each[0] == source), (source, -1))
            assert queue.remove(source, oldest) == (oldest in kept)
            if oldest in kept:
                kept.remove(oldest)
        assert len(queue) == len(kept) <= 5
