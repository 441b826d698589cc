"""Backoff: random waits that grow to a bound."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from bootbridge.common.backoff import Backoff


def test_waits_grow_to_a_bound_with_jitter_and_start_small_after_a_reset() -> None:
    backoff = Backoff(Random(7), least=0.5, first=2.0, most=30.0)
    waits = [backoff.seconds() for _ in range(2000)]
    assert all(0.5 <= wait <= 30.0 for wait in waits)
    assert all(wait <= ceiling for wait, ceiling in zip(waits, (2, 4, 8, 16, 30), strict=False))
    assert max(waits) > 25
    assert any(later < before for before, later in pairwise(waits)), "jitter"
    backoff.reset()
    assert backoff.seconds() <= 2.0
