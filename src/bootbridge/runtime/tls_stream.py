"""TLS on a socket: OpenSSL between two memory buffers.

Data is decrypted and encrypted in parts that fit into the processor's cache, because OpenSSL copies every
byte twice.
"""

from __future__ import annotations

import _ssl
import socket
import ssl
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, cast

from bootbridge.ports.byte_ports import ByteHandler
from bootbridge.ports.close_states import Event, State
from bootbridge.runtime.byte_stream import CLOSED, NO_HANDLER, PlainStream, reason_of
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.sockets import READABLE, WRITABLE
from bootbridge.runtime.tls_failure import tls_failure
from bootbridge.wire.packets import Buffer

HANDSHAKE_SECONDS_MAX: Final = 20.0
# One TLS record; OpenSSL splits larger writes anyway.
_RECORD_BYTES: Final = 16384
# All at once (256 KiB) costs up to 7 % more processor time; half of it no less (docs/performance.md).
_CACHED_BYTES: Final = 128 * 1024
_NOTHING: Final = memoryview(b"")
_EMPTY: Final = ssl.MemoryBIO()


class TlsStream(PlainStream):
    """TLS on a socket. Calls ``ready`` after the handshake, or ``failed`` with the reason."""

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
        self._timer = pump.timers.after(HANDSHAKE_SECONDS_MAX, self._on_handshake_timeout)
        self._read_on()
        self._shake_hands()

    @property
    def alpn(self) -> str | None:
        return self._tls.selected_alpn_protocol()

    def peer_names(self) -> list[tuple[str, str]]:
        """Returns the subject alternative names of the peer's verified certificate, as (type, value)."""
        certificate = self._tls.getpeercert() or {}
        return list(cast("tuple[tuple[str, str], ...]", certificate.get("subjectAltName", ())))

    def peer_chain(self) -> list[bytes]:
        """Returns the peer's verified chain as DER, its own certificate first and the trust anchor last."""
        if hasattr(self._tls, "get_verified_chain"):  # Python 3.13
            return list(self._tls.get_verified_chain())
        chain = self._tls._sslobj.get_verified_chain() or []  # type: ignore[attr-defined]
        return [certificate.public_bytes(_ssl.ENCODING_DER) for certificate in chain]

    def start(self, handler: ByteHandler) -> None:
        self._handler = handler
        if self._incoming.pending or self.state is not State.OPEN:
            self.pump.soon(partial(self._catch_up, self.state))

    def _catch_up(self, at_start: State) -> None:
        """Delivers to the handler what arrived between the handshake and ``start``."""
        if at_start is State.CLOSED:
            self._handler.on_lost("connection lost after the TLS handshake")
        elif self.state is not State.CLOSED:
            self._decrypt(_NOTHING)
            if at_start is State.READ_ENDED:
                self._handler.on_eof(True)

    # --- handshake

    def _watch(self) -> None:
        """A handshake takes long, so a few of them at a time are served."""
        if self._ready is None:
            super()._watch()
        elif self._reading or self._blocked:
            events = (READABLE if self._reading else 0) | (WRITABLE if self._blocked else 0)
            self.pump.sockets.watch_slow(self._fd, events, self._on_ready)
        else:
            self.pump.sockets.unwatch(self._fd)

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._touch()
            return
        except ssl.SSLError as error:
            self._touch()
            self._refuse(tls_failure(error, self._tls))
            return
        self._stop_timer()
        self._touch()
        ready, self._ready = self._ready, None
        assert ready is not None
        self._watch()
        ready(self)

    def _on_handshake_timeout(self) -> None:
        self._refuse(f"TLS handshake timed out after {HANDSHAKE_SECONDS_MAX:.0f}s")

    def _refuse(self, reason: str) -> None:
        self._ready = None
        failed = self._failed
        self.close()
        failed(reason)

    def _broke(self, error: OSError) -> None:
        if self._ready is None:
            super()._broke(error)
            return
        failed = self._failed  # no handler yet: report to the callback of the handshake
        self._ready = None
        self._close_now()
        failed(reason_of(error))

    def _touch(self) -> None:
        """Schedules a flush if OpenSSL or the stream has output."""
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
        try:
            if size:
                self._take(pump.read_buffer[:size])
            elif self._ready is not None:
                self._move(Event.PEER_ENDS)
                self._refuse("connection closed by peer during the TLS handshake")
            else:
                self._end_of_stream()
        except Exception as error:
            self._fail(error)
        pump.end_turn()

    def _take(self, received: memoryview) -> None:
        if self._has_reader:
            self._decrypt(received)
            return
        self._incoming.write(received)
        if self._ready is not None:
            self._shake_hands()
        if self._has_reader:
            self._decrypt(_NOTHING)

    @property
    def _has_reader(self) -> bool:
        """Whether received data has a handler, or is to be discarded."""
        return self._ready is None and (self._handler is not NO_HANDLER or not self._writes)

    def _decrypt(self, received: memoryview) -> None:
        plain, incoming = self.pump.plain_buffer, self._incoming
        read = self._read
        size = 0
        ended = False
        while not ended:
            incoming.write(received[:_CACHED_BYTES])
            received = received[_CACHED_BYTES:]
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
                    self._lose(self._write_error or tls_failure(error))
            if not received:
                break
        if size:
            self._handler.on_bytes(plain[:size])
        if ended:
            self._end_of_stream()
        self._touch()

    def _end_of_stream(self) -> None:
        """TLS has no reliable half-close: the end of one direction ends the connection."""
        if self._move(Event.PEER_ENDS):
            self._read_off()
            if self._writes:
                self._handler.on_eof(True)

    # --- writing

    def _flush(self) -> None:
        if self.state is CLOSED:
            return
        try:
            self._send_out()
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

    def _send_out(self) -> None:
        shaking_hands = self._ready is not None
        if shaking_hands:
            self._out = [bytes(part) for part in self._out]  # sent after this turn
        while True:
            if not self._encrypted:
                if self._out and not shaking_hands:
                    self._encrypt()
                if not self._outgoing.pending:
                    return
                self._encrypted = self._outgoing.read()
            sent = self._sock.send(self._encrypted)
            if sent < len(self._encrypted):
                self._encrypted = memoryview(self._encrypted)[sent:]
                raise BlockingIOError
            self._encrypted = b""

    def _encrypt(self) -> None:
        """Encrypts the next part of the pending output."""
        out = self._out = _records(self._out) if len(self._out) > 1 else self._out
        write = self._tls.write
        room = _CACHED_BYTES
        whole = 0
        for part in out:
            size = len(part)
            if size <= _RECORD_BYTES:
                write(part)
                room -= size
            else:
                view = memoryview(part)
                end = min(size, room)
                for at in range(0, end, _RECORD_BYTES):
                    write(view[at : min(at + _RECORD_BYTES, end)])
                room -= end
                if end < size:
                    out[whole] = view[end:]
                    break
            whole += 1
            if room <= 0:
                break
        del out[:whole]

    def finish(self) -> bool:
        self.close()
        return False

    def _close_now(self, event: Event = Event.RELEASE) -> None:
        """Frees OpenSSL's state and buffers at once, up to 300 KiB: a closed stream is often part of a
        reference cycle, and in a flood of connections cycles are collected too late."""
        super()._close_now(event)
        if self.state is CLOSED:
            self._incoming = self._outgoing = _EMPTY
            self._tls = _unconnected()
            self._read = cast("Callable[[int, memoryview], int]", self._tls.read)
            self._encrypted = b""
            self._failed = _ignore

    def _part(self) -> None:
        self._send_close_notify()
        super()._part()

    def _send_close_notify(self) -> None:
        if self._ready is None and self.state is not State.CLOSED:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # does not wait for the peer's close_notify
            try:
                self._sock.send(self._outgoing.read())
            except OSError:
                pass


@lru_cache(maxsize=1)
def _unconnected() -> ssl.SSLObject:
    """Stands for the TLS state of a closed stream; every operation on it fails."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).wrap_bio(_EMPTY, _EMPTY, server_side=True)


def _ignore(reason: str) -> None: ...


def _records(parts: list[Buffer]) -> list[Buffer]:
    """Joins small parts and leaves large ones: few records without large copies."""
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
