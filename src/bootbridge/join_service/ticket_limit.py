"""How many tickets one machine may have: each is a Secret in the cluster, for as long as its token lives.

An instance needs one, and another whenever it was rebooted before it became a node. One that asks without end
is broken, or is no longer its owner's. A rejoin leaves nothing behind but a certificate that was signed;
those are counted apart, by the same numbers. Each join service counts for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from bootbridge.errors import BootbridgeError
from bootbridge.join_api.errors import RetryLater

# Whose tokens are all still good.
TICKETS_PER_KEY_MAX: Final = 16


class TicketLimit:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # When the token of each ends; those of machines that do not come again are forgotten in time.
        self._live: dict[str, deque[float]] = {}

    def require_room(self, holder: str) -> None:
        """Raises RetryLater when the holder has as many tickets as it may have."""
        live = self._of(holder)
        if len(live) >= TICKETS_PER_KEY_MAX:
            wait = round(live[0] - self._clock())
            raise RetryLater(
                f"{len(live)} tickets were given to this key lately; the next can be in {wait} s"
            )

    @contextmanager
    def one_more(self, holder: str, token_seconds: int) -> Iterator[None]:
        """Around its making: it counts from the beginning, and not if the API server would not have it.

        Where the caller left meanwhile it counts: else whoever always leaves could have as many as it likes.
        """
        self.require_room(holder)
        self._forget_one()
        ends_at = self._clock() + token_seconds
        self._live.setdefault(holder, deque()).append(ends_at)
        try:
            yield
        except BootbridgeError:
            self._live[holder].remove(ends_at)
            raise

    def _of(self, holder: str) -> deque[float]:
        live = self._live.get(holder, deque())
        while live and live[0] <= self._clock():
            live.popleft()
        return live

    def _forget_one(self) -> None:
        """Who has been here longest, if it has no token any more: so there are never many such."""
        if self._live and not self._of(longest := next(iter(self._live))):
            del self._live[longest]
