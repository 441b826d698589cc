"""A DATA frame whose content its stream gets as it arrives.

A frame of 1 MiB may contain 50,000 of the smallest packets. If they were handled when the frame is complete,
all other connections would wait meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bootbridge.wire import frames as f
from bootbridge.wire.frames import Http2ConnectionError

if TYPE_CHECKING:
    from bootbridge.wire.http2_stream import Stream


class DataFrame:
    """``stream``: None if the content is discarded. ``content_size``: how much of it has arrived."""

    __slots__ = ("_left", "_padding", "_padding_due", "content_size", "ends_stream", "length", "stream")

    def __init__(self, flags: int, length: int) -> None:
        self.length = length
        self.ends_stream = bool(flags & f.END_STREAM)
        self.stream: Stream | None = None
        self.content_size = 0
        self._left = length
        self._padding = 0
        self._padding_due = bool(flags & f.PADDED)  # its size is the first byte
        if self._padding_due and not length:
            raise _invalid_padding()

    @property
    def complete(self) -> bool:
        return not self._left

    def take(self, buffer: memoryview, at: int) -> int:
        """Passes on the content that ``buffer`` holds from ``at`` on; returns where the frame ends in it."""
        end = min(len(buffer), at + self._left)
        self._left -= end - at
        if self._padding_due and at < end:
            self._padding_due = False
            self._padding = int(buffer[at])
            if self._padding >= self.length:
                raise _invalid_padding()
            at += 1
        content_end = min(end, end + self._left - self._padding)
        if at < content_end:
            self.content_size += content_end - at
            stream = self.stream
            if stream is not None and not stream.remote_closed:
                stream.handler.on_data(buffer, at, content_end)
        return end


def _invalid_padding() -> Http2ConnectionError:
    return Http2ConnectionError("padding is longer than the frame", f.PROTOCOL_ERROR)
