"""Sockets as byte ports. Plain and TLS, both with writes that never block and never get lost.

Sockets are read and written directly when the loop says that they can be; there is no
transport in between. A write gathers until the end of the turn, then one ``send`` takes all
of it; what the kernel does not take waits here, and its size is the stream's ``backlog``.
"""

from __future__ import annotations

import fcntl
import select
import socket
import ssl
import struct
import sys
import termios
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from bootbridge.runtime.pump import Pump
from bootbridge.runtime.sockets import GONE, READABLE, WRITABLE
from bootbridge.tunnel.ports import ByteHandler
from bootbridge.tunnel.timers import Timer
from bootbridge.wire.packets import Buffer

# Parts of this size on average are joined, which is cheaper than handing the kernel a list of them.
JOIN_BYTES_MAX: Final = 32 * 1024
PARTS_MAX: Final = 64
# How long a closed stream waits for its peer to take what was written last.
LINGER_SECONDS_MAX: Final = 5.0
LINGER_CHECK_SECONDS: Final = 0.02
FLUSH_SECONDS_MAX: Final = 30.0
HANDSHAKE_SECONDS_MAX: Final = 20.0
# A half-closed peer that goes away altogether is noticed within this time.
HANGUP_CHECK_SECONDS: Final = 1.0
# Silence on the wire while our bytes are not acknowledged: the peer is gone.
USER_TIMEOUT_MS: Final = 20_000
# One TLS record; larger writes are cut up by OpenSSL anyway.
_RECORD_BYTES: Final = 16384
_ABORT: Final = struct.pack("ii", 1, 0)


class _Nobody:
    """The handler of a stream that nobody listens to any more."""

    def on_bytes(self, data: memoryview) -> None: ...
    def on_eof(self, gone: bool) -> None: ...
    def on_drained(self) -> None: ...
    def on_lost(self, reason: str) -> None: ...


_NOBODY: Final = _Nobody()


def tune(sock: socket.socket) -> None:
    """What every TCP connection of ours gets."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def tune_link(sock: socket.socket) -> None:
    """What a connection between server and agent gets on top, to notice a silent loss."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


class PlainStream:
    """A connected, non-blocking socket."""

    __slots__ = (
        "_blocked",
        "_closed",
        "_closing",
        "_eof",
        "_fd",
        "_finishing",
        "_handler",
        "_out",
        "_paused",
        "_reading",
        "_sock",
        "_timer",
        "_unix",
        "backlog",
        "pump",
    )

    def __init__(self, pump: Pump, sock: socket.socket, *, unix: bool = False) -> None:
        self.pump = pump
        self.backlog = 0
        self._sock = sock
        self._fd = sock.fileno()
        self._unix = unix  # told, because asking a socket for its family costs an enum lookup
        self._handler: ByteHandler = _NOBODY
        self._out: list[Buffer] = []
        self._blocked = False
        self._paused = False
        self._reading = False
        self._eof = False
        self._finishing = False
        self._closing = False
        self._closed = False
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "closing" if self._closing else "open"
        return f"<{type(self).__name__} {self._fd} {state} backlog {self.backlog}B>"

    def start(self, handler: ByteHandler) -> None:
        self._handler = handler
        self._read_on()

    def read_now(self) -> None:
        """The peer has probably spoken already: look, before the loop comes round to saying so."""
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
        """The same while the socket is full; a lost connection shows in both directions."""
        if events & (WRITABLE | GONE):
            self._on_writable()
        if events & (READABLE | GONE) and self._reading:
            self._on_readable(events)

    # --- reading

    def _read_on(self) -> None:
        if not (self._reading or self._paused or self._eof or self._closed):
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
            if size:
                self._handler.on_bytes(pump.read_buffer[:size])
            else:
                self._on_eof(bool(events & GONE) or _hung_up(self._fd))
        pump.end_turn()

    def _on_eof(self, gone: bool) -> None:
        self._eof = True
        if not self._closing:
            if not gone:
                self._timer = self.pump.timers.after(HANGUP_CHECK_SECONDS, self._look_for_hangup)
            self._handler.on_eof(gone)
        self._read_off()  # last, because it costs nothing once the stream is closed

    def _look_for_hangup(self) -> None:
        if _hung_up(self._fd):
            self._handler.on_lost("the peer closed the connection")
        else:
            self._timer = self.pump.timers.after(HANGUP_CHECK_SECONDS, self._look_for_hangup)

    # --- writing

    def write(self, data: Buffer) -> None:
        if self._closing or not data:
            return
        if self._blocked:
            data = bytes(data)  # it has to outlive this turn
        elif not self._out:
            self.pump.dirty.append(self)
        self._out.append(data)
        self.backlog += len(data)

    def flush(self) -> None:
        if not self._blocked:
            self._flush()

    def _flush(self) -> None:
        if self._closed:
            return
        out = self._out
        if out:
            try:
                while out and self._send_some(out):
                    pass
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._broke(error)
                return
            if out:
                self._block()
            else:
                self._unblock()
            self._handler.on_drained()
        if not self.backlog and (self._closing or self._finishing):
            self._flushed()

    def _send_some(self, out: list[Buffer]) -> bool:
        """One system call. True if the kernel took all that it was offered."""
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

    def _block(self) -> None:
        if not self._blocked:
            self._blocked = True
            self._out = list(map(_kept, self._out))  # what is written later is copied at once
            self._watch()

    def _unblock(self) -> None:
        if self._blocked:
            self._blocked = False
            self._watch()

    def _on_writable(self) -> None:
        self._flush()
        self.pump.end_turn()

    def _flushed(self) -> None:
        if self._closing:
            self._part()
        elif self._finishing:
            self._shut_down()

    # --- ending

    def finish(self) -> None:
        self._finishing = True
        if not self.backlog:
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the peer was faster; reading will tell

    def close(self) -> None:
        if self._closing or self._closed:
            return
        self._closing = True
        self._handler = _NOBODY
        self._stop_timer()
        if self.backlog:
            self._timer = self.pump.timers.after(FLUSH_SECONDS_MAX, self.abort)  # no orderly end for a part
        else:
            self._part()

    def _part(self) -> None:
        """Everything is with the kernel. Closing resets the connection if the peer has said something
        that we did not read, and a reset would destroy what is still on its way to it: wait for that."""
        if self._unix or not _undelivered(self._fd):
            self._close_now()
            return
        self._read_off()
        self._shut_down()
        self._stop_timer()
        self._wait_for_delivery(self.pump.timers.now() + LINGER_SECONDS_MAX)

    def _wait_for_delivery(self, deadline: float) -> None:
        timers = self.pump.timers
        if timers.now() >= deadline or not _undelivered(self._fd):
            self._close_now()
        else:
            self._timer = timers.after(LINGER_CHECK_SECONDS, lambda: self._wait_for_delivery(deadline))

    def abort(self) -> None:
        if not self._closed:
            try:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            except OSError:
                pass  # a unix socket has no such thing: closing is all there is
            self._close_now()

    def _broke(self, error: OSError) -> None:
        handler = self._handler
        self._close_now()
        handler.on_lost(_reason(error))

    def _close_now(self) -> None:
        if self._closed:
            return
        self._closed = self._closing = True
        self._handler = _NOBODY
        self._reading = self._blocked = False
        self.pump.sockets.forget(self._fd)
        self._stop_timer()
        self._out = []
        self.backlog = 0
        self._sock.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class TlsStream(PlainStream):
    """TLS on a socket. ``ready`` is called once the handshake is done, ``failed`` if it is not."""

    __slots__ = ("_encrypted", "_failed", "_incoming", "_outgoing", "_read", "_ready", "_tls")

    def __init__(
        self,
        pump: Pump,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_name: str | None = None,
        ready: Callable[[TlsStream], None],
        failed: Callable[[str], None],
    ) -> None:
        super().__init__(pump, sock)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._read = cast("Callable[[int, memoryview], int]", self._tls.read)
        self._ready: Callable[[TlsStream], None] | None = ready
        self._failed = failed
        self._encrypted: Buffer = b""
        self._timer = pump.timers.after(HANDSHAKE_SECONDS_MAX, self._too_slow)
        self._read_on()
        self._shake_hands()

    @property
    def alpn(self) -> str | None:
        return self._tls.selected_alpn_protocol()

    def start(self, handler: ByteHandler) -> None:
        self._handler = handler
        if self._incoming.pending or self._eof or self._closed:
            self.pump.soon(partial(self._catch_up, self._eof, self._closed))

    def _catch_up(self, ended: bool, closed: bool) -> None:
        """Tell the handler what came between the handshake and ``start``."""
        if closed:
            self._handler.on_lost("the connection was lost behind the TLS handshake")
        elif not self._closed:
            self._decrypt()
            if ended:
                self._handler.on_eof(True)

    # --- handshake

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._touch()
            return
        except ssl.SSLError as error:
            self._touch()
            self._refuse(_tls_reason(error))
            return
        self._stop_timer()
        self._touch()
        ready, self._ready = self._ready, None
        assert ready is not None
        ready(self)

    def _too_slow(self) -> None:
        self._refuse(f"no TLS handshake within {HANDSHAKE_SECONDS_MAX:.0f} s")

    def _refuse(self, reason: str) -> None:
        self._ready = None
        self.close()
        self._failed(reason)

    def _broke(self, error: OSError) -> None:
        if self._ready is None:
            super()._broke(error)
            return
        self._close_now()  # nobody handles this stream yet, but somebody waits for its handshake
        self._refuse(_reason(error))

    def _touch(self) -> None:
        """OpenSSL itself may have something to say."""
        if self._outgoing.pending or self._out:
            self.pump.dirty.append(self)

    # --- reading

    def _on_readable(self, events: int) -> None:
        pump = self.pump
        try:
            size = self._sock.recv_into(pump.read_buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broke(error)
            pump.end_turn()
            return
        if size:
            self._incoming.write(pump.read_buffer[:size])
            if self._ready is not None:
                self._shake_hands()
            if self._ready is None and (self._handler is not _NOBODY or self._closing):
                self._decrypt()
        elif self._ready is not None:
            self._eof = True
            self._refuse("the peer closed the connection during the TLS handshake")
        else:
            self._end_of_stream()
        pump.end_turn()

    def _decrypt(self) -> None:
        plain, incoming = self.pump.plain_buffer, self._incoming
        read = self._read
        size = 0
        ended = False
        try:
            while incoming.pending:
                got = read(_RECORD_BYTES, plain[size:])
                if not got:
                    ended = True
                    break
                size += got
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            ended = True
            if not isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError):
                self._broke(error)
        if size:
            self._handler.on_bytes(plain[:size])
        if ended:
            self._end_of_stream()
        self._touch()

    def _end_of_stream(self) -> None:
        """TLS has no half-close worth the name: the end of one direction is the end."""
        if self._closed or self._eof:
            return
        self._eof = True
        self._read_off()
        if not self._closing:
            self._handler.on_eof(True)

    # --- writing

    def _flush(self) -> None:
        if self._closed:
            return
        try:
            self._send_records()
        except (BlockingIOError, InterruptedError):
            self._block()
        except OSError as error:
            self._broke(error)
            return
        else:
            self._unblock()
        self.backlog = len(self._encrypted) + sum(map(len, self._out))
        self._handler.on_drained()
        if not self.backlog:
            self._flushed()

    def _send_records(self) -> None:
        shaking_hands = self._ready is not None
        if shaking_hands:
            self._out = [bytes(part) for part in self._out]  # to be sent later than this turn
        while True:
            if not self._encrypted:
                if self._out and not shaking_hands:
                    self._encrypt(self._out)
                if not self._outgoing.pending:
                    return
                self._encrypted = self._outgoing.read()
            sent = self._sock.send(self._encrypted)
            if sent < len(self._encrypted):
                self._encrypted = memoryview(self._encrypted)[sent:]
                raise BlockingIOError
            self._encrypted = b""

    def _encrypt(self, out: list[Buffer]) -> None:
        write = self._tls.write
        for part in _records(out) if len(out) > 1 else out:
            size = len(part)
            if size <= _RECORD_BYTES:
                write(part)
                continue
            view = memoryview(part)
            for at in range(0, size, _RECORD_BYTES):
                write(view[at : at + _RECORD_BYTES])
        out.clear()

    def finish(self) -> None:
        self.close()

    def _part(self) -> None:
        self._say_goodbye()
        super()._part()

    def _say_goodbye(self) -> None:
        if self._ready is None and not self._closed:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # the peer's half is not waited for
            try:
                self._sock.send(self._outgoing.read())
            except OSError:
                pass


def _records(parts: list[Buffer]) -> list[Buffer]:
    """Small parts joined, large ones left alone: as few records as possible without a copy."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < _RECORD_BYTES:
            small.append(part)
            continue
        if small:
            joined.append(small[0] if len(small) == 1 else b"".join(small))
            small = []
        joined.append(part)
    if small:
        joined.append(small[0] if len(small) == 1 else b"".join(small))
    return joined


def _kept(part: Buffer) -> Buffer:
    """A part that has to outlive this turn: copied, unless it is its own already."""
    owned = isinstance(part, bytes) or (isinstance(part, memoryview) and isinstance(part.obj, bytes))
    return part if owned else bytes(part)


def _drop(parts: list[Buffer], size: int) -> None:
    """Take ``size`` bytes away from the front."""
    whole = 0
    while size >= len(parts[whole]):
        size -= len(parts[whole])
        whole += 1
    del parts[:whole]
    if size:
        parts[0] = memoryview(parts[0])[size:]


def _hung_up(fd: int) -> bool:
    """Whether the peer does not read any more either, as far as the kernel knows."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def _undelivered(fd: int) -> int:
    """How many bytes the peer's kernel has not acknowledged yet."""
    return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0"), sys.byteorder)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
