"""The law of list-then-watch."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bootbridge.kube.list_watch import PAUSE_SECONDS_MAX, EventEffect, List, ListWatch, Pause, Watch


def lease(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version)}}


def listing(version: int, *items: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "items": list(items)}


def watching(version: int = 5, *items: dict[str, Any]) -> ListWatch:
    law = ListWatch(random.Random(1))
    law.next_step()
    law.listed(listing(version, *items))
    assert law.next_step() == Watch(str(version))
    return law


def test_it_begins_with_a_list_that_the_cache_may_answer() -> None:
    assert ListWatch(random.Random(1)).next_step() == List("0")


def test_a_list_is_followed_by_a_watch_from_its_version() -> None:
    law = watching(5, lease("a", 3))
    assert set(law.objects) == {"ns/a"}


def test_events_add_change_and_remove_objects_and_move_the_version() -> None:
    law = watching(5, lease("a", 3))
    assert law.event({"type": "ADDED", "object": lease("b", 6)}) is EventEffect.CHANGED
    assert law.event({"type": "MODIFIED", "object": lease("a", 7)}) is EventEffect.CHANGED
    assert law.event({"type": "DELETED", "object": lease("b", 8)}) is EventEffect.CHANGED
    law.ended()
    assert law.objects == {"ns/a": lease("a", 7)}
    assert law.next_step() == Watch("8")


def test_a_bookmark_moves_the_version_and_nothing_else() -> None:
    law = watching(5, lease("a", 3))
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "40"}}}
    assert law.event(bookmark) is EventEffect.UNCHANGED
    law.ended()
    assert law.next_step() == Watch("40")


def test_a_forgotten_version_is_answered_by_a_fresh_list_at_once() -> None:
    law = watching()
    assert law.event({"type": "ERROR", "object": {"code": 410}}) is EventEffect.WATCH_ENDED
    assert law.next_step() == List("")


def test_a_version_forgotten_over_and_over_is_not_a_hot_loop() -> None:
    law = watching()
    law.refused(410)
    assert law.next_step() == List("")
    law.listed(listing(6))
    law.next_step()
    law.refused(410)
    assert isinstance(law.next_step(), Pause)


def test_a_lost_connection_keeps_objects_and_version() -> None:
    law = watching(5, lease("a", 3))
    law.lost()
    assert isinstance(law.next_step(), Pause)
    assert law.next_step() == Watch("5")
    assert "ns/a" in law.objects


def test_a_forbidden_watch_turns_into_polling() -> None:
    law = watching()
    law.refused(403)
    assert isinstance(law.next_step(), Pause)
    assert law.next_step() == List("0")


def test_a_watch_that_ends_without_an_event_is_not_repeated_at_once() -> None:
    law = watching()
    law.ended()
    assert isinstance(law.next_step(), Pause)
    assert law.next_step() == Watch("5")


def test_pauses_grow_to_a_bound_are_jittered_and_reset_by_an_event() -> None:
    law = watching()
    pauses = []
    for _ in range(12):
        law.lost()
        step = law.next_step()
        assert isinstance(step, Pause)
        pauses.append(step.seconds)
    assert 0.25 <= pauses[0] <= 0.5
    assert 15 <= pauses[-1] <= PAUSE_SECONDS_MAX
    assert len(set(pauses)) == len(pauses)
    law.event({"type": "ADDED", "object": lease("a", 6)})
    law.lost()
    step = law.next_step()
    assert isinstance(step, Pause)
    assert step.seconds <= 0.5


def test_the_servers_own_retry_after_is_honoured_within_the_bound() -> None:
    law = watching()
    law.refused(429, retry_after=20)
    assert law.next_step() == Pause(20)
    law.refused(429, retry_after=10_000)
    assert law.next_step() == Pause(PAUSE_SECONDS_MAX)


@pytest.mark.parametrize(
    "answer", [{}, {"metadata": {}}, {"metadata": {"resourceVersion": 5}}, {**listing(5), "items": {"a": 1}}]
)
def test_an_answer_without_a_list_is_retried_after_a_pause(answer: dict[str, Any]) -> None:
    law = ListWatch(random.Random(1))
    law.next_step()
    assert not law.listed(answer)
    assert isinstance(law.next_step(), Pause)
    assert law.next_step() == List("0")


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["metadata", "name", "namespace", "resourceVersion", "code", "items"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)


class FollowingAChangingResource(RuleBasedStateMachine):
    """After any sequence of lost connections, an up-to-date copy has exactly the server's objects."""

    def __init__(self) -> None:
        super().__init__()
        self.truth: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, dict[str, Any]]] = []
        self.version = 1
        self.oldest = 0
        self.law = ListWatch(random.Random(7))
        self.position: int | None = None  # of the open watch
        self.steps_without_pause = 0

    @rule(name=st.sampled_from("abc"), delete=st.booleans())
    def the_resource_changes(self, name: str, delete: bool) -> None:
        self.version += 1
        item = lease(name, self.version)
        kind = "MODIFIED" if f"ns/{name}" in self.truth else "ADDED"
        if delete:
            if self.truth.pop(f"ns/{name}", None) is None:
                return
            kind = "DELETED"
        else:
            self.truth[f"ns/{name}"] = item
        self.history.append((self.version, {"type": kind, "object": item}))
        self.steps_without_pause = 0

    @rule()
    def the_server_forgets(self) -> None:
        self.oldest = self.version
        self.history.clear()
        self.steps_without_pause = 0

    @precondition(lambda self: self.position is None)
    @rule(lost=st.booleans())
    def the_follower_acts(self, lost: bool) -> None:
        step = self.law.next_step()
        self.steps_without_pause = 0 if isinstance(step, Pause) else self.steps_without_pause + 1
        if isinstance(step, Pause):
            assert 0 < step.seconds <= PAUSE_SECONDS_MAX
        elif lost:
            self.law.lost()
        elif isinstance(step, List):
            assert self.law.listed(listing(self.version, *self.truth.values()))
        elif int(step.resource_version) < self.oldest:
            self.law.refused(410)
        else:
            self.position = int(step.resource_version)

    @precondition(lambda self: self.position is not None)
    @rule()
    def the_next_event_arrives(self) -> None:
        assert self.position is not None
        if self.position < self.oldest:  # what this watch has yet to see is forgotten
            gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
            assert self.law.event(gone) is EventEffect.WATCH_ENDED
            self.position = None
            return
        for version, event in self.history:
            if version > self.position:
                assert self.law.event(event) is not EventEffect.WATCH_ENDED
                self.position = version
                return

    @precondition(lambda self: self.position is not None)
    @rule(broken=st.booleans())
    def the_watch_is_over(self, broken: bool) -> None:
        self.position = None
        if broken:
            self.law.lost()
        else:
            self.law.ended()

    @precondition(lambda self: self.position is not None)
    @rule(junk=json_values, kind=st.sampled_from(["ADDED", "DELETED", "NEWS", None]))
    def a_malformed_event_arrives(self, junk: Any, kind: str | None) -> None:
        if isinstance(junk, dict) and isinstance(junk.get("metadata"), dict):
            junk["metadata"].pop("resourceVersion", None)
        assert self.law.event({"type": kind, "object": junk}) is EventEffect.UNCHANGED

    @precondition(lambda self: self.position is not None)
    @invariant()
    def level_means_equal(self) -> None:
        assert self.position is not None
        if all(version <= self.position for version, _ in self.history) and self.position >= self.oldest:
            assert self.law.objects == self.truth

    @invariant()
    def no_hot_loop(self) -> None:
        assert self.steps_without_pause <= 4


TestFollowingAChangingResource = FollowingAChangingResource.TestCase
TestFollowingAChangingResource.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
