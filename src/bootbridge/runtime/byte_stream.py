"""Sockets as byte ports with non-blocking, buffered writes. `tls_stream` adds TLS.

Sockets are read and written directly when they are ready; no asyncio transport is involved.
Writes are collected until the end of the turn and leave with one ``send``. Data that the kernel does
not accept stays here; its size is the stream's ``backlog``.
"""

from __future__ import annotations

import errno
import fcntl
import select
import socket
import struct
import sys
import termios
from typing import Final

from bootbridge.ports.byte_ports import ByteHandler
from bootbridge.ports.close_states import BYTE_STREAM, Event, State
from bootbridge.ports.timers import Timer
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.sockets import GONE, READABLE, WRITABLE
from bootbridge.wire.packets import Buffer

# Parts of up to this average size are joined, which is cheaper than sendmsg with a list.
JOIN_BYTES_MAX: Final = 32 * 1024
PARTS_MAX: Final = 64
# How long a closed stream waits until the peer's kernel has acknowledged all data.
LINGER_SECONDS_MAX: Final = 5.0
LINGER_CHECK_SECONDS: Final = 0.02
# How long the peer of a closed stream may accept no data. On a unix socket the following abort looks like an
# orderly end to the peer, so the limit is longer.
FLUSH_STALL_SECONDS_MAX: Final = 30.0
UNIX_FLUSH_STALL_SECONDS_MAX: Final = 300.0
# How often a half-closed peer is checked for a full close.
HANGUP_CHECK_SECONDS: Final = 1.0
# Go's default: idle time before the first probe, and between probes; nine unanswered probes end it.
KEEPALIVE_SECONDS: Final = 15
# How long sent data may stay unacknowledged before the connection counts as lost.
USER_TIMEOUT_MS: Final = 20_000
_OPEN: Final = State.OPEN
CLOSED: Final = State.CLOSED
_CLOSING: Final = frozenset({State.CLOSING, State.CLOSING_READ_ENDED})
_READING: Final = frozenset({State.OPEN, State.WRITE_ENDED, State.WRITE_BROKEN, State.CLOSING})
_WRITING: Final = frozenset({State.OPEN, State.READ_ENDED, State.WRITE_ENDED, State.BOTH_ENDED})
_ABORT: Final = struct.pack("ii", 1, 0)


class _NoHandler:
    """The handler of a stream whose owner has closed it."""

    def on_bytes(self, data: memoryview) -> None: ...
    def on_eof(self, gone: bool) -> None: ...
    def on_drained(self) -> None: ...
    def on_lost(self, reason: str) -> None: ...


NO_HANDLER: Final = _NoHandler()


def set_tcp_options(sock: socket.socket) -> None:
    """Disables Nagle's algorithm and enables keepalive, which detects a peer that lost power."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)


def set_user_timeout(sock: socket.socket) -> None:
    """For connections between server and agent: detects a loss while data is being sent."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


class PlainStream:
    """A connected, non-blocking socket."""

    __slots__ = (
        "_blocked",
        "_ended_in_order",
        "_fd",
        "_handler",
        "_is_unix",
        "_out",
        "_paused",
        "_reading",
        "_reads",
        "_sock",
        "_timer",
        "_write_error",
        "_writes",
        "backlog",
        "pump",
        "state",
    )

    def __init__(self, pump: Pump, sock: socket.socket, *, unix: bool = False) -> None:
        self.pump = pump
        self.backlog = 0
        self._sock = sock
        self._fd = sock.fileno()
        self._is_unix = unix  # a parameter, because sock.family costs an enum lookup
        self._handler: ByteHandler = NO_HANDLER
        self._out: list[Buffer] = []
        self._blocked = False
        self._paused = False
        self._reading = False
        self.state: State = State.OPEN
        self._reads = self._writes = True  # follow from the state, for the path of every read and write
        self._write_error = ""  # why writing failed, although the peer's data may still be readable
        self._ended_in_order = False  # the peer had sent its end before writing failed
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._fd} {self.state} backlog {self.backlog}B>"

    def _move(self, event: Event) -> bool:
        """Follows the table; True if the state changed."""
        before = self.state
        self.state = BYTE_STREAM.after(before, event)
        self._reads = self.state in _READING
        self._writes = self.state in _WRITING
        return self.state is not before

    def start(self, handler: ByteHandler) -> None:
        self._handler = handler
        self._read_on()

    def read_now(self) -> None:
        """Reads at once, because data has probably arrived already; saves a round through the loop."""
        if self._reading:
            self._on_readable(READABLE)

    # --- what to wait for

    def _watch(self) -> None:
        sockets = self.pump.sockets
        if self._blocked:
            sockets.watch(self._fd, WRITABLE | (READABLE if self._reading else 0), self._on_ready)
        elif self._reading:
            sockets.watch(self._fd, READABLE, self._on_readable)
        else:
            sockets.unwatch(self._fd)

    def _on_ready(self, events: int) -> None:
        """Handles both directions while output is blocked; a lost connection is reported for both."""
        if events & (READABLE | GONE) and self._reading:
            self._on_readable(events)
        if events & (WRITABLE | GONE) and self._blocked:
            self._on_writable()

    # --- reading

    def _read_on(self) -> None:
        if self._reads and not (self._reading or self._paused):
            self._reading = True
            self._watch()

    def _read_off(self) -> None:
        if self._reading:
            self._reading = False
            self._watch()

    def pause_reading(self) -> None:
        self._paused = True
        self._read_off()

    def resume_reading(self) -> None:
        self._paused = False
        self._read_on()

    def _on_readable(self, events: int) -> None:
        pump = self.pump
        try:
            size = self._sock.recv_into(pump.read_buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broke(error)
        else:
            try:
                if size:
                    self._handler.on_bytes(pump.read_buffer[:size])
                else:
                    self._on_eof(bool(events & GONE) or _hung_up(self._fd))
            except Exception as error:
                self._fail(error)
        pump.end_turn()

    def _on_eof(self, gone: bool) -> None:
        if self._write_error:
            self._end_after_failed_write()
            return
        self._move(Event.PEER_ENDS)
        if self._writes:
            if not gone:
                self._timer = self.pump.timers.after(HANGUP_CHECK_SECONDS, self._check_hangup)
            self._handler.on_eof(gone)
        self._read_off()  # last, because it costs nothing once the stream is closed

    def _end_after_failed_write(self) -> None:
        """The kernel reports a reset once, and writing has taken it: reading finds an end as well."""
        if self._ended_in_order:
            handler = self._handler
            self._close_now(Event.PEER_ENDS)
            handler.on_eof(True)
        else:
            self._lose(self._write_error, Event.PEER_ENDS)

    def _check_hangup(self) -> None:
        if _hung_up(self._fd):
            self._handler.on_lost("connection closed by peer")
        else:
            self._timer = self.pump.timers.after(HANGUP_CHECK_SECONDS, self._check_hangup)

    # --- writing

    def write(self, data: Buffer) -> None:
        if not self._writes or not data:
            return
        if self._blocked:
            data = bytes(data)  # the caller's buffer is valid only during this turn
        elif not self._out:
            self.pump.dirty.append(self)
        self._out.append(data)
        self.backlog += len(data)

    def flush(self) -> None:
        if not self._blocked:
            self._flush()

    def _flush(self) -> None:
        if self.state is CLOSED:
            return
        if self._out:
            try:
                self._send_out()
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._cannot_write(error)
                return
            if self._out:
                self._block()
            else:
                self._unblock()
            self._handler.on_drained()
        if not self.backlog:
            self._flushed()

    def _send_out(self) -> None:
        """Sends as much pending data as the kernel accepts now."""
        out = self._out
        while out and self._send_some(out):
            pass

    def _send_some(self, out: list[Buffer]) -> bool:
        """Makes one system call; returns True if the kernel accepted everything offered."""
        parts = out if len(out) <= PARTS_MAX else out[:PARTS_MAX]
        if len(parts) == 1:
            size = len(parts[0])
            sent = self._sock.send(parts[0])
        else:
            size = sum(map(len, parts))
            joined = size <= JOIN_BYTES_MAX * len(parts)
            sent = self._sock.send(b"".join(parts)) if joined else self._sock.sendmsg(parts)
        self.backlog -= sent
        if sent == size:
            del out[: len(parts)]
            return True
        _drop(out, sent)
        return False

    def _cannot_write(self, error: OSError) -> None:
        """Keeps reading after a failed write: the peer may have sent the reason before it closed."""
        if not (self._reads and self._writes):
            self._lose(reason_of(error), Event.WRITE_FAILS)
            return
        self._move(Event.WRITE_FAILS)
        self._write_error = reason_of(error)
        # A reset is EPIPE if the peer's end came before it, ECONNRESET otherwise.
        self._ended_in_order = error.errno == errno.EPIPE
        self._out = []
        self.backlog = 0
        self._unblock()
        self._handler.on_drained()

    def _block(self) -> None:
        if not self._blocked:
            self._blocked = True
            self._out = list(map(_kept, self._out))  # later writes are copied at once
            self._watch()

    def _unblock(self) -> None:
        if self._blocked:
            self._blocked = False
            self._watch()

    def _on_writable(self) -> None:
        self._flush()
        self.pump.end_turn()

    def _flushed(self) -> None:
        if self.state is _OPEN:
            return
        if self.state in _CLOSING:
            self._part()
        elif self.state is State.WRITE_ENDED or self.state is State.BOTH_ENDED:
            self._shut_down()

    # --- ending

    @property
    def unread(self) -> bool:
        return self.state is not State.CLOSED and (self.backlog > 0 or _undelivered(self._fd) > 0)

    def finish(self) -> bool:
        self._move(Event.FINISH)
        if not self.backlog:
            self._shut_down()
        return True

    def _shut_down(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the peer closed first; reading reports it

    def close(self) -> None:
        if not self._move(Event.CLOSE):
            return
        self._handler = NO_HANDLER
        self._stop_timer()
        self.pump.lingering[self] = None
        if self.backlog:
            self._wait_for_flush()
        elif self._write_error:
            self._close_now()
        else:
            self._part()

    def _wait_for_flush(self) -> None:
        waiting = self.backlog
        seconds = UNIX_FLUSH_STALL_SECONDS_MAX if self._is_unix else FLUSH_STALL_SECONDS_MAX

        def look() -> None:
            if self.backlog < waiting:
                self._wait_for_flush()
            else:
                self.abort()  # a truncated stream must not end in order

        self._timer = self.pump.timers.after(seconds, look)

    def _part(self) -> None:
        """Closes once the peer has received everything. Closing with unread input resets the connection,
        and a reset would discard data that is still in flight."""
        if self._is_unix or not _undelivered(self._fd):
            self._close_now()
            return
        self._move(Event.FLUSHED)
        self._read_off()
        self._shut_down()
        self._stop_timer()
        self._wait_for_delivery(self.pump.timers.now() + LINGER_SECONDS_MAX)

    def _wait_for_delivery(self, deadline: float) -> None:
        timers = self.pump.timers
        # After a reset the kernel still counts the undelivered bytes.
        if timers.now() >= deadline or not _undelivered(self._fd) or _was_reset(self._fd):
            self._close_now()
        else:
            self._timer = timers.after(LINGER_CHECK_SECONDS, lambda: self._wait_for_delivery(deadline))

    def abort(self) -> None:
        """Resets the connection after sending what was written in this turn."""
        if self.state is not State.CLOSED:
            if self._out and not self._blocked:
                try:
                    self._send_out()
                except OSError:
                    pass  # the connection is reset anyway
            try:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            except OSError:
                pass  # unix sockets have no reset: closing has to do
            self._close_now()

    def _broke(self, error: OSError) -> None:
        self._lose(self._write_error or reason_of(error))

    def _fail(self, error: Exception) -> None:
        """Reports a bug and ends this connection; the others continue."""
        self.pump.loop.report(error)
        self._lose("internal error")

    def _lose(self, reason: str, event: Event = Event.RELEASE) -> None:
        handler = self._handler
        self._close_now(event)
        handler.on_lost(reason)

    def _close_now(self, event: Event = Event.RELEASE) -> None:
        if not self._move(event):
            return
        self._handler = NO_HANDLER
        self._reading = self._blocked = False
        self.pump.sockets.forget(self._fd)
        self.pump.lingering.pop(self, None)
        self._stop_timer()
        self._out = []
        self.backlog = 0
        self._sock.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _kept(part: Buffer) -> Buffer:
    """Returns a part that stays valid after this turn: a copy, unless it is immutable already."""
    owned = isinstance(part, bytes) or (isinstance(part, memoryview) and isinstance(part.obj, bytes))
    return part if owned else bytes(part)


def _drop(parts: list[Buffer], size: int) -> None:
    """Removes ``size`` bytes from the front."""
    whole = 0
    while size >= len(parts[whole]):
        size -= len(parts[whole])
        whole += 1
    del parts[:whole]
    if size:
        parts[0] = memoryview(parts[0])[size:]


def _hung_up(fd: int) -> bool:
    """Whether the peer has closed both directions, as far as the kernel knows."""
    return bool(_events(fd) & (select.POLLHUP | select.POLLERR))


def _was_reset(fd: int) -> bool:
    """Whether the connection has failed. A hang-up is not enough: two orderly ends cause one as well."""
    return bool(_events(fd) & select.POLLERR)


def _events(fd: int) -> int:
    poll = select.poll()
    poll.register(fd, 0)
    return sum(events for _, events in poll.poll(0))


def _undelivered(fd: int) -> int:
    """How many bytes are not acknowledged by the peer's kernel (TCP) or not read by the peer (unix)."""
    return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0"), sys.byteorder)


def reason_of(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
