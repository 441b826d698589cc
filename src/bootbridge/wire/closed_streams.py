"""The streams of one connection that were closed last: a late frame for them is ignored or is an error."""

from __future__ import annotations

from typing import Final

from bootbridge.wire import frames as f
from bootbridge.wire.frames import Http2ConnectionError, StreamError
from bootbridge.wire.http2_budgets import BudgetExceeded

# How many closed streams are remembered.
CLOSED_REMEMBERED: Final = 128


class ClosedStreams:
    """Remembers who closed a stream: after our reset, the peer may have frames in flight."""

    __slots__ = ("_by_us", "_data_left")

    def __init__(self) -> None:
        self._by_us: dict[int, bool] = {}
        # How much DATA may be in flight for the streams that we closed: what was left of their windows, and
        # for each an empty frame that ends it.
        self._data_left = 0

    def __len__(self) -> int:
        return len(self._by_us)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._by_us

    def remember(self, stream_id: int, by_us: bool, window: int = 0) -> None:
        """``window``: what the peer could still send when we closed the stream."""
        if by_us:
            self._data_left += window + 1
        self._by_us[stream_id] = by_us
        if len(self._by_us) > CLOSED_REMEMBERED:
            del self._by_us[next(iter(self._by_us))]

    def check_late(self, stream_id: int, kind: str) -> None:
        """Raises for a frame on a closed stream, unless we closed it."""
        by_us = self._by_us.get(stream_id)
        if by_us is False:
            raise Http2ConnectionError(f"{kind} on closed stream {stream_id}", f.STREAM_CLOSED)
        if by_us is None:
            raise StreamError(stream_id, f"{kind} on closed stream", f.STREAM_CLOSED)

    def check_late_data(self, stream_id: int, size: int) -> None:
        """Raises also for more DATA than the peer can have sent before it knew that the stream was closed."""
        self.check_late(stream_id, "DATA")
        self._data_left -= max(1, size)
        if self._data_left < 0:
            raise BudgetExceeded("late DATA", "too much DATA on closed streams")
