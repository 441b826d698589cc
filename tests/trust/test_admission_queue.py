"""Who is served next: nobody takes all places, nobody is forgotten, and the largest crowd gives way."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from bootbridge.trust.attested.admission_queue import Places, WaitingRoom, source_of


def served(room: WaitingRoom[str]) -> list[str]:
    """Who has a place, in the order in which they got it."""
    found = []
    while turn := room.next():
        found.append(turn[1])
    return found


def filled(places: Places, **crowds: int) -> WaitingRoom[str]:
    room: WaitingRoom[str] = WaitingRoom(places)
    for source, number in crowds.items():
        for each in range(number):
            assert room.enter(source, f"{source}{each}") is None
    return room


def test_one_source_has_no_more_than_its_share() -> None:
    room = filled(Places(handshakes=8, channels=100), a=20)
    assert served(room) == ["a0", "a1", "a2", "a3"]
    room.enter("b", "b0")
    assert served(room) == ["b0"], "whoever comes from elsewhere finds a place at once"


def test_a_crowd_behind_one_address_is_served_in_turn() -> None:
    room = filled(Places(handshakes=2, channels=8), a=1000)
    seen: list[str] = []
    while now := served(room):
        seen += now
        for _ in now:
            room.proved("a")
            room.left("a")
    assert seen == [f"a{number}" for number in range(1000)]
    assert room.waiting == 0


def test_sources_take_turns() -> None:
    room = filled(Places(handshakes=6, channels=100, share=1.0), a=5, b=3, c=1)
    assert served(room) == ["a0", "b0", "c0", "a1", "b1", "a2"]


def test_a_channel_in_use_counts_for_its_source_although_it_has_proved_itself() -> None:
    room = filled(Places(handshakes=8, channels=4), a=3)
    assert served(room) == ["a0", "a1"]
    room.proved("a")
    room.proved("a")
    assert served(room) == []
    room.left("a")
    assert served(room) == ["a2"]


def test_where_there_is_one_place_it_can_be_had() -> None:
    assert served(filled(Places(handshakes=1, channels=1), a=2)) == ["a0"]


def test_when_too_many_wait_the_newest_of_the_largest_crowd_leaves() -> None:
    room = filled(Places(handshakes=1, channels=1, waiting=4), a=3, b=1)
    assert room.enter("c", "c0") == "a2"
    assert room.enter("a", "a3") == "a3"
    assert served(room) == ["a0"]
    assert room.enter("b", "b1") is None
    assert room.waiting == 4


def test_nobody_waits_any_more_when_it_is_over() -> None:
    room = filled(Places(), a=2, b=1)
    assert room.emptied() == ["a0", "a1", "b0"]
    assert room.next() is None


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_limits_hold_and_everybody_has_a_turn(seed: int) -> None:
    chance = Random(seed)
    places = Places(chance.randint(1, 6), chance.randint(1, 9), chance.randint(1, 30), chance.random())
    room: WaitingRoom[int] = WaitingRoom(places)
    proving: list[str] = []
    proved: list[str] = []
    expected = 0
    for number in range(500):
        source = chance.choice("aaaabbc")
        expected += room.enter(source, number) is None
        while turn := room.next():
            proving.append(turn[0])
            expected -= 1
        assert len(proving) <= places.handshakes
        inside = Counter(proving + proved)
        assert inside.total() <= places.channels
        assert max(inside.values(), default=0) <= places.shared(places.channels)
        assert max(Counter(proving).values(), default=0) <= places.shared(places.handshakes)
        assert room.waiting <= places.waiting
        for crowd, ending in ((proving, room.proved), (proved, room.left)):
            if crowd and chance.random() < 0.6:
                gone = crowd.pop(chance.randrange(len(crowd)))
                ending(gone)
                if crowd is proving:
                    proved.append(gone)
    assert room.waiting == expected
    while room.waiting:
        while turn := room.next():
            proving.append(turn[0])
        for source in proving:
            room.proved(source)
        for source in proving + proved:
            room.left(source)
        proving, proved = [], []
    assert room.next() is None


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("a socket", "a socket"),
    ],
)
def test_a_source_is_an_address_or_the_network_that_a_machine_may_have_all_of(
    address: str, source: str
) -> None:
    assert source_of(address) == source
