"""Keeps one slow connection from delaying the others when the peer knows no credit.

A Go peer sends as fast as the shared stream permits, for all connections together. While more than
``bound`` bytes wait in the sink of a connection, the stream is *metered*: the peer may send as many
bytes as all sinks pass on, plus a trickle. So a slow connection slows its own sender, roughly as in
Konnectivity, and a long download is not cut off. If a connection stops completely, the bytes of the
others still arrive with the trickle. A connection that passes on nothing for ``seconds_max``, or has
more than ``stalled_max`` bytes waiting, is closed; the others are not affected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from bootbridge.bounds import BOUNDS
from bootbridge.ports.timers import Timer, Timers

if TYPE_CHECKING:
    from bootbridge.tunnel.packet_stream import Receiver

TRICKLE_SECONDS: Final = 0.01
# A connection that has waited this long for its receiver counts as stalled in the metrics.
STALLED_SECONDS: Final = 5.0


class Metered(Protocol):
    """The shared stream: while it is paused, the peer sends only what is granted."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def grant(self, size: int) -> None: ...


class _Watched:
    __slots__ = ("moved_at", "taken")

    def __init__(self, taken: int, now: float) -> None:
        self.taken = taken
        self.moved_at = now


class StallGuard:
    """Watches the receivers of one packet stream whose sinks are above the bound."""

    def __init__(self, source: Metered, timers: Timers, seconds_max: float) -> None:
        self.bound = BOUNDS.stalled
        self._source = source
        self._timers = timers
        self._seconds_max = seconds_max
        self._watched: dict[Receiver, _Watched] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._watched)

    def stalled_count(self, now: float) -> int:
        return sum(now - watched.moved_at >= STALLED_SECONDS for watched in self._watched.values())

    def watch(self, receiver: Receiver) -> None:
        """Called for every packet while the receiver's sink is above the bound."""
        if receiver.sink.backlog > BOUNDS.stalled_max:
            self._close(receiver, f"more than {BOUNDS.stalled_max} bytes queued")
        elif receiver not in self._watched:
            self._watched[receiver] = _Watched(receiver.taken, self._timers.now())
            self._source.pause_reading()
            if self._timer is None:
                self._timer = self._timers.after(TRICKLE_SECONDS, self._tick)

    def on_drained(self, receiver: Receiver, size: int) -> None:
        """A sink of this stream passed on ``size`` bytes."""
        if not self._watched:
            return
        self._source.grant(size)
        if receiver in self._watched and receiver.sink.backlog <= self.bound // 2:
            self.forget(receiver)

    def forget(self, receiver: Receiver) -> None:
        if self._watched.pop(receiver, None) is not None and not self._watched:
            self._stop()
            self._source.resume_reading()

    def close(self) -> None:
        self._watched.clear()
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now = self._timers.now()
        self._timer = self._timers.after(TRICKLE_SECONDS, self._tick)
        self._source.grant(BOUNDS.trickle)
        for receiver, watched in list(self._watched.items()):
            if receiver.taken > watched.taken:
                watched.taken, watched.moved_at = receiver.taken, now
            elif now - watched.moved_at >= self._seconds_max:
                self._close(receiver, f"no progress for {now - watched.moved_at:.0f} s")

    def _close(self, receiver: Receiver, reason: str) -> None:
        self.forget(receiver)
        receiver.owner.close_overrun(reason)
