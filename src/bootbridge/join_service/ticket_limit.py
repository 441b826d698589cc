"""Limits the valid tickets of one key: each is a Secret in the cluster until its token expires.

An instance needs one, and another after each reboot before it became a node. An instance that requests more
is broken or compromised. A rejoin creates only a certificate; rejoins are counted separately, by the same
limit. Each join service counts for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from bootbridge.errors import BootbridgeError
from bootbridge.join_api.errors import RetryLater

TICKETS_PER_KEY_MAX: Final = 16


class TicketLimit:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Expiry times by identity, oldest identity first; expired entries are removed over time.
        self._expiries: dict[str, deque[float]] = {}

    def check(self, identity: str) -> None:
        """Raises RetryLater when the identity has TICKETS_PER_KEY_MAX valid tickets."""
        valid = self._valid(identity)
        if len(valid) >= TICKETS_PER_KEY_MAX:
            wait = round(valid[0] - self._clock())
            raise RetryLater(f"{len(valid)} valid tickets for this key; the next is possible in {wait} s")

    @contextmanager
    def reserve(self, identity: str, token_seconds: int) -> Iterator[None]:
        """Counts a ticket from the start of its creation; a BootbridgeError inside cancels the reservation.

        A ticket counts although its caller disconnected: else disconnecting would bypass the limit.
        """
        self.check(identity)
        self._remove_one_expired()
        expires_at = self._clock() + token_seconds
        self._expiries.setdefault(identity, deque()).append(expires_at)
        try:
            yield
        except BootbridgeError:
            self._expiries[identity].remove(expires_at)
            raise

    def _valid(self, identity: str) -> deque[float]:
        expiries = self._expiries.get(identity, deque())
        while expiries and expiries[0] <= self._clock():
            expiries.popleft()
        return expiries

    def _remove_one_expired(self) -> None:
        """Checks the oldest identity; one check per ticket bounds the number of expired entries."""
        if self._expiries and not self._valid(oldest := next(iter(self._expiries))):
            del self._expiries[oldest]
