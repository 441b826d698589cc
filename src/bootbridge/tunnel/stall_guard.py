"""What keeps one slow receiver from hurting the others when the peer knows no credit.

A Go peer sends as fast as the shared stream allows. A sink that falls behind by more than
``bound`` is watched:

* While it keeps moving, the shared stream is held back to its pace, as upstream does. Slow
  is not broken, and cutting a long download would be worse than slowing its neighbours.
* When it has not moved for ``GRACE_SECONDS`` it counts as stalled: the stream flows again,
  for everybody else's sake, and this one connection may pile up to ``bytes_max``.
* When it has been stalled for ``seconds_max``, or holds ``bytes_max``, it alone is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bootbridge.tunnel.ports import Source
from bootbridge.tunnel.timers import Timer, Timers

if TYPE_CHECKING:
    from bootbridge.tunnel.packet_stream import Inlet

BOUND_BYTES: Final = 4 * 1024 * 1024
BYTES_MAX: Final = 32 * 1024 * 1024
GRACE_SECONDS: Final = 0.5
CHECK_SECONDS: Final = 0.25


class _Watched:
    __slots__ = ("moved_at", "taken")

    def __init__(self, taken: int, now: float) -> None:
        self.taken = taken
        self.moved_at = now


class StallGuard:
    """Watches the inlets of one packet stream whose sinks have fallen behind."""

    def __init__(self, source: Source, timers: Timers, seconds_max: float, bound: int = BOUND_BYTES) -> None:
        self.bound = bound
        self._source = source
        self._timers = timers
        self._seconds_max = seconds_max
        self._watched: dict[Inlet, _Watched] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, inlet: Inlet) -> None:
        """Called with every packet that finds its sink above the bound."""
        if inlet.sink.backlog > BYTES_MAX:
            self._close(inlet, f"more than {BYTES_MAX} bytes are waiting for it")
        elif inlet not in self._watched:
            self._watched[inlet] = _Watched(inlet.written - inlet.sink.backlog, self._timers.now())
            self._source.pause_reading()
            if self._timer is None:
                self._timer = self._timers.after(CHECK_SECONDS, self._check)

    def forget(self, inlet: Inlet) -> None:
        if self._watched.pop(inlet, None) is not None and not self._watched:
            self._source.resume_reading()

    def close(self) -> None:
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        now = self._timers.now()
        hold = False
        for inlet, watched in list(self._watched.items()):
            taken = inlet.written - inlet.sink.backlog
            if inlet.sink.backlog <= self.bound // 2:
                del self._watched[inlet]
                continue
            if taken > watched.taken:
                watched.taken, watched.moved_at = taken, now
            idle = now - watched.moved_at
            if idle >= self._seconds_max:
                self._close(inlet, f"its receiver took nothing for {idle:.0f} s")
            else:
                hold = hold or idle < GRACE_SECONDS
        if hold:
            self._source.pause_reading()
        else:
            self._source.resume_reading()
        self._timer = self._timers.after(CHECK_SECONDS, self._check) if self._watched else None

    def _close(self, inlet: Inlet, reason: str) -> None:
        self._watched.pop(inlet, None)
        inlet.owner.close_overrun(reason)
