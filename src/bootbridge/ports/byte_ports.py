"""Byte streams and dials, as the protocol cores see them."""

from __future__ import annotations

from typing import Protocol

from bootbridge.wire.packets import Buffer


class Sink(Protocol):
    """Accepts bytes, and queues what its receiver has not taken. A buffer is valid only during the call."""

    @property
    def backlog(self) -> int: ...
    def write(self, data: Buffer) -> None: ...


class PausableSource(Protocol):
    """Delivers bytes, and can be paused."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class BytePort(Sink, PausableSource, Protocol):
    """A connected byte stream: the socket of a frontend or an endpoint."""

    @property
    def unread(self) -> bool:
        """Whether the peer has not taken all that was written, as far as the kernel knows."""

    def finish(self) -> bool:
        """Half-closes once the backlog is written. False: this port knows no half-close, and closes."""

    def close(self) -> None:
        """Writes the backlog, then closes without losing it. No more callbacks."""

    def abort(self) -> None:
        """Closes at once, with a reset where the transport knows one. No more callbacks."""


class ByteHandler(Protocol):
    """Callbacks of a byte port to its owner."""

    def on_bytes(self, data: memoryview) -> None: ...
    def on_eof(self, gone: bool) -> None:
        """The peer sends no more; ``gone``: it does not read either."""

    def on_drained(self) -> None:
        """Some of the backlog was written."""

    def on_lost(self, reason: str) -> None:
        """The connection is lost, and the port closed."""


class PendingDial(Protocol):
    def cancel(self) -> None: ...


class DialResult(Protocol):
    """Callbacks of a dial: exactly one of them is called, unless the dial is cancelled."""

    def on_dialled(self, port: BytePort) -> ByteHandler: ...
    def on_dial_failed(self, error: str, timed_out: bool) -> None: ...


class Dialler(Protocol):
    """Makes TCP connections: resolves names and tries every address, within a time limit."""

    def dial(self, protocol: str, address: str, result: DialResult) -> PendingDial: ...
