"""The streams of one connection that were closed last: a late frame for them is ignored or is an error."""

from __future__ import annotations

from typing import Final

from bootbridge.wire import frames as f
from bootbridge.wire.frames import Http2ConnectionError, StreamError

# How many closed streams are remembered.
CLOSED_REMEMBERED: Final = 128


class ClosedStreams:
    """Remembers who closed a stream: after our reset, the peer may have frames in flight."""

    __slots__ = ("_by_us",)

    def __init__(self) -> None:
        self._by_us: dict[int, bool] = {}

    def __len__(self) -> int:
        return len(self._by_us)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._by_us

    def remember(self, stream_id: int, by_us: bool) -> None:
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
