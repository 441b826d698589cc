"""The state machine of list and watch, without I/O."""

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
    state = ListWatch(random.Random(1))
    state.next_step()
    state.listed(listing(version, *items))
    assert state.next_step() == Watch(str(version))
    return state


def test_the_first_list_may_come_from_the_cache_of_the_api_server() -> None:
    assert ListWatch(random.Random(1)).next_step() == List("0")


def test_a_list_is_followed_by_a_watch_from_its_version() -> None:
    state = watching(5, lease("a", 3))
    assert set(state.objects) == {"ns/a"}


def test_events_change_objects_and_resource_version() -> None:
    state = watching(5, lease("a", 3))
    assert state.event({"type": "ADDED", "object": lease("b", 6)}) is EventEffect.CHANGED
    assert state.event({"type": "MODIFIED", "object": lease("a", 7)}) is EventEffect.CHANGED
    assert state.event({"type": "DELETED", "object": lease("b", 8)}) is EventEffect.CHANGED
    state.ended()
    assert state.objects == {"ns/a": lease("a", 7)}
    assert state.next_step() == Watch("8")


def test_a_bookmark_changes_only_the_resource_version() -> None:
    state = watching(5, lease("a", 3))
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "40"}}}
    assert state.event(bookmark) is EventEffect.UNCHANGED
    state.ended()
    assert state.next_step() == Watch("40")


def test_an_expired_resource_version_leads_to_a_consistent_list_at_once() -> None:
    state = watching()
    assert state.event({"type": "ERROR", "object": {"code": 410}}) is EventEffect.WATCH_ENDED
    assert state.next_step() == List("")


def test_repeated_expiry_leads_to_a_pause() -> None:
    state = watching()
    state.refused(410)
    assert state.next_step() == List("")
    state.listed(listing(6))
    state.next_step()
    state.refused(410)
    assert isinstance(state.next_step(), Pause)


def test_a_lost_connection_keeps_objects_and_resource_version() -> None:
    state = watching(5, lease("a", 3))
    state.lost()
    assert isinstance(state.next_step(), Pause)
    assert state.next_step() == Watch("5")
    assert "ns/a" in state.objects


def test_a_forbidden_watch_is_replaced_by_polling() -> None:
    state = watching()
    state.refused(403)
    assert isinstance(state.next_step(), Pause)
    assert state.next_step() == List("0")


def test_a_watch_that_ends_without_an_event_is_not_repeated_at_once() -> None:
    state = watching()
    state.ended()
    assert isinstance(state.next_step(), Pause)
    assert state.next_step() == Watch("5")


def test_pauses_grow_to_a_bound_are_jittered_and_reset_by_an_event() -> None:
    state = watching()
    pauses = []
    for _ in range(12):
        state.lost()
        step = state.next_step()
        assert isinstance(step, Pause)
        pauses.append(step.seconds)
    assert 0.25 <= pauses[0] <= 0.5
    assert 15 <= pauses[-1] <= PAUSE_SECONDS_MAX
    assert len(set(pauses)) == len(pauses)
    state.event({"type": "ADDED", "object": lease("a", 6)})
    state.lost()
    step = state.next_step()
    assert isinstance(step, Pause)
    assert step.seconds <= 0.5


def test_retry_after_is_respected_up_to_the_bound() -> None:
    state = watching()
    state.refused(429, retry_after=20)
    assert state.next_step() == Pause(20)
    state.refused(429, retry_after=10_000)
    assert state.next_step() == Pause(PAUSE_SECONDS_MAX)


@pytest.mark.parametrize(
    "answer", [{}, {"metadata": {}}, {"metadata": {"resourceVersion": 5}}, {**listing(5), "items": {"a": 1}}]
)
def test_an_invalid_list_is_retried_after_a_pause(answer: dict[str, Any]) -> None:
    state = ListWatch(random.Random(1))
    state.next_step()
    assert not state.listed(answer)
    assert isinstance(state.next_step(), Pause)
    assert state.next_step() == List("0")


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
        self.server_objects: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, dict[str, Any]]] = []
        self.version = 1
        self.oldest = 0
        self.state = ListWatch(random.Random(7))
        self.position: int | None = None  # of the open watch
        self.steps_without_pause = 0

    @rule(name=st.sampled_from("abc"), delete=st.booleans())
    def the_resource_changes(self, name: str, delete: bool) -> None:
        self.version += 1
        item = lease(name, self.version)
        kind = "MODIFIED" if f"ns/{name}" in self.server_objects else "ADDED"
        if delete:
            if self.server_objects.pop(f"ns/{name}", None) is None:
                return
            kind = "DELETED"
        else:
            self.server_objects[f"ns/{name}"] = item
        self.history.append((self.version, {"type": kind, "object": item}))
        self.steps_without_pause = 0

    @rule()
    def the_server_compacts_its_history(self) -> None:
        self.oldest = self.version
        self.history.clear()
        self.steps_without_pause = 0

    @precondition(lambda self: self.position is None)
    @rule(lost=st.booleans())
    def the_client_takes_a_step(self, lost: bool) -> None:
        step = self.state.next_step()
        self.steps_without_pause = 0 if isinstance(step, Pause) else self.steps_without_pause + 1
        if isinstance(step, Pause):
            assert 0 < step.seconds <= PAUSE_SECONDS_MAX
        elif lost:
            self.state.lost()
        elif isinstance(step, List):
            assert self.state.listed(listing(self.version, *self.server_objects.values()))
        elif int(step.resource_version) < self.oldest:
            self.state.refused(410)
        else:
            self.position = int(step.resource_version)

    @precondition(lambda self: self.position is not None)
    @rule()
    def the_next_event_arrives(self) -> None:
        assert self.position is not None
        if self.position < self.oldest:  # events that this watch has not received were compacted
            gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
            assert self.state.event(gone) is EventEffect.WATCH_ENDED
            self.position = None
            return
        for version, event in self.history:
            if version > self.position:
                assert self.state.event(event) is not EventEffect.WATCH_ENDED
                self.position = version
                return

    @precondition(lambda self: self.position is not None)
    @rule(broken=st.booleans())
    def the_watch_ends(self, broken: bool) -> None:
        self.position = None
        if broken:
            self.state.lost()
        else:
            self.state.ended()

    @precondition(lambda self: self.position is not None)
    @rule(content=json_values, kind=st.sampled_from(["ADDED", "DELETED", "NEWS", None]))
    def a_malformed_event_arrives(self, content: Any, kind: str | None) -> None:
        if isinstance(content, dict) and isinstance(content.get("metadata"), dict):
            content["metadata"].pop("resourceVersion", None)
        assert self.state.event({"type": kind, "object": content}) is EventEffect.UNCHANGED

    @precondition(lambda self: self.position is not None)
    @invariant()
    def an_up_to_date_copy_equals_the_server(self) -> None:
        assert self.position is not None
        if all(version <= self.position for version, _ in self.history) and self.position >= self.oldest:
            assert self.state.objects == self.server_objects

    @invariant()
    def no_hot_loop(self) -> None:
        assert self.steps_without_pause <= 4


TestFollowingAChangingResource = FollowingAChangingResource.TestCase
TestFollowingAChangingResource.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
