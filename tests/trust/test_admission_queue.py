"""Admission: shares per source, fair turns, and eviction from a full queue."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from bootbridge.trust.attested.admission_queue import AdmissionLimits, AdmissionQueue
from bootbridge.wire.addresses import source_of


def served(queue: AdmissionQueue[str]) -> list[str]:
    """Admits all that the limits allow; returns them in order."""
    found = []
    while turn := queue.admit_next():
        found.append(turn[1])
    return found


def filled(limits: AdmissionLimits, **counts: int) -> AdmissionQueue[str]:
    queue: AdmissionQueue[str] = AdmissionQueue(limits)
    for source, number in counts.items():
        for each in range(number):
            assert queue.enqueue(source, f"{source}{each}") is None
    return queue


def test_one_source_gets_its_share_only() -> None:
    queue = filled(AdmissionLimits(handshakes=8, channels=100), a=20)
    assert served(queue) == ["a0", "a1", "a2", "a3"]
    queue.enqueue("b", "b0")
    assert served(queue) == ["b0"], "another source is admitted at once"


def test_many_connections_of_one_source_are_admitted_in_order() -> None:
    queue = filled(AdmissionLimits(handshakes=2, channels=8), a=1000)
    seen: list[str] = []
    while now := served(queue):
        seen += now
        for _ in now:
            queue.end_handshake("a")
            queue.release("a")
    assert seen == [f"a{number}" for number in range(1000)]
    assert queue.waiting == 0


def test_sources_take_turns() -> None:
    queue = filled(AdmissionLimits(handshakes=6, channels=100, share=1.0), a=5, b=3, c=1)
    assert served(queue) == ["a0", "b0", "c0", "a1", "b1", "a2"]


def test_an_open_channel_counts_towards_its_sources_share() -> None:
    queue = filled(AdmissionLimits(handshakes=8, channels=4), a=3)
    assert served(queue) == ["a0", "a1"]
    queue.end_handshake("a")
    queue.end_handshake("a")
    assert served(queue) == []
    queue.release("a")
    assert served(queue) == ["a2"]


def test_a_limit_of_one_admits_one() -> None:
    assert served(filled(AdmissionLimits(handshakes=1, channels=1), a=2)) == ["a0"]


def test_a_full_queue_evicts_the_newest_of_the_largest_source() -> None:
    queue = filled(AdmissionLimits(handshakes=1, channels=1, waiting=4), a=3, b=1)
    assert queue.enqueue("c", "c0") == "a2"
    assert queue.enqueue("a", "a3") == "a3"
    assert served(queue) == ["a0"]
    assert queue.enqueue("b", "b1") is None
    assert queue.waiting == 4


def test_drain_empties_the_queue() -> None:
    queue = filled(AdmissionLimits(), a=2, b=1)
    assert queue.drain() == ["a0", "a1", "b0"]
    assert queue.admit_next() is None


@pytest.mark.parametrize("seed", range(20))
def test_random_sequences_keep_the_limits_and_admit_all(seed: int) -> None:
    chance = Random(seed)
    limits = AdmissionLimits(
        chance.randint(1, 6), chance.randint(1, 9), chance.randint(1, 30), chance.random()
    )
    queue: AdmissionQueue[int] = AdmissionQueue(limits)
    proving: list[str] = []
    proved: list[str] = []
    expected = 0
    for number in range(500):
        source = chance.choice("aaaabbc")
        expected += queue.enqueue(source, number) is None
        while turn := queue.admit_next():
            proving.append(turn[0])
            expected -= 1
        assert len(proving) <= limits.handshakes
        inside = Counter(proving + proved)
        assert inside.total() <= limits.channels
        assert max(inside.values(), default=0) <= limits.per_source(limits.channels)
        assert max(Counter(proving).values(), default=0) <= limits.per_source(limits.handshakes)
        assert queue.waiting <= limits.waiting
        for crowd, ending in ((proving, queue.end_handshake), (proved, queue.release)):
            if crowd and chance.random() < 0.6:
                gone = crowd.pop(chance.randrange(len(crowd)))
                ending(gone)
                if crowd is proving:
                    proved.append(gone)
    assert queue.waiting == expected
    while queue.waiting:
        while turn := queue.admit_next():
            proving.append(turn[0])
        for source in proving:
            queue.end_handshake(source)
        for source in proving + proved:
            queue.release(source)
        proving, proved = [], []
    assert queue.admit_next() is None


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
def test_a_source_is_an_ipv4_address_or_an_ipv6_64(address: str, source: str) -> None:
    assert source_of(address) == source
