"""The border: what the cores ask of the world, and what the world tells them."""

from __future__ import annotations

from typing import Protocol

from bootbridge.wire.packets import Buffer


class Sink(Protocol):
    """Something that takes bytes and may be slow. A buffer is only valid during the call."""

    @property
    def backlog(self) -> int: ...
    def write(self, data: Buffer) -> None: ...


class PausableSource(Protocol):
    """Something that brings bytes and can be asked to wait."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class BytePort(Sink, PausableSource, Protocol):
    """A connected byte stream: a frontend's socket or an endpoint's."""

    @property
    def unread(self) -> bool:
        """Whether the peer has not taken all that was written, as far as the kernel knows."""

    def finish(self) -> bool:
        """Half-close: no more bytes from us, once the backlog is written. False: this port knows no
        half-close, so it is closed."""

    def close(self) -> None:
        """Close in order: write the backlog, then part without losing it. No more callbacks."""

    def abort(self) -> None:
        """Close at once, and let the other end see that it was no orderly end. No more callbacks."""


class ByteHandler(Protocol):
    """What a byte port tells its owner."""

    def on_bytes(self, data: memoryview) -> None: ...
    def on_eof(self, gone: bool) -> None:
        """The peer sends no more; ``gone``: it does not read any more either."""

    def on_drained(self) -> None:
        """Some of the backlog was written."""

    def on_lost(self, reason: str) -> None:
        """The connection broke."""


class PendingDial(Protocol):
    def cancel(self) -> None: ...


class DialResult(Protocol):
    """Who waits for a TCP dial: exactly one of the two is called, unless it was cancelled."""

    def on_dialled(self, port: BytePort) -> ByteHandler: ...
    def on_dial_failed(self, error: str, timed_out: bool) -> None: ...


class Dialler(Protocol):
    """Makes TCP connections: names resolved, every address tried, within its time limit."""

    def dial(self, protocol: str, address: str, result: DialResult) -> PendingDial: ...
