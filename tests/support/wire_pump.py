"""Connections over real sockets: one thread per connection, for conversations with foreign gRPC programs."""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from bootbridge.wire import frames as f
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Http2Connection, Stream, StreamHandler

Result = TypeVar("Result")
PATIENCE_SECONDS = 20.0


class Pump:
    """Moves bytes between a socket and a connection in a thread of its own, where all handlers run too."""

    def __init__(self, sock: socket.socket, connection: Http2Connection) -> None:
        self.http2 = connection
        self.pings_seen = 0
        self.failure: BaseException | None = None
        self._sock = sock
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = socket.socketpair()
        self._changed = threading.Condition()
        self._stopping = False
        self._watcher = FrameWatcher(self._on_frame, preface=not connection.client)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    # --- from the test's thread

    def do(self, job: Callable[[], Result]) -> Result:
        """Run ``job`` in the pump's thread and hand back its result."""
        box: queue.SimpleQueue[tuple[bool, Result | BaseException]] = queue.SimpleQueue()

        def run() -> None:
            try:
                box.put((True, job()))
            except BaseException as error:
                box.put((False, error))

        self._jobs.put(run)
        self._wake_write.send(b"!")
        fine, result = box.get(timeout=PATIENCE_SECONDS)
        if fine:
            return result  # type: ignore[return-value]
        assert isinstance(result, BaseException)
        raise result

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Runs until ``condition`` holds; evaluates it after every event."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_SECONDS), f"in vain: {what}"

    def close(self) -> None:
        self._stopping = True
        with contextlib.suppress(OSError):
            self._wake_write.send(b"!")
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    # --- in the pump's thread

    def _run(self) -> None:
        try:
            while not self._stopping and self._turn():
                pass
        except BaseException as error:
            self.failure = error
        finally:
            self.http2.lost("the connection is closed")
            for sock in (self._sock, self._wake_read, self._wake_write):
                sock.close()
            self._tell()

    def _turn(self) -> bool:
        self._write()
        if self.http2.closed:
            return False
        readable, _, _ = select.select([self._sock, self._wake_read], [], [])
        if self._wake_read in readable:
            self._wake_read.recv(1)
            self._jobs_done()
        if self._sock in readable:
            data = self._read()
            if not data:
                return False
            self._watcher.feed(data)
            self.http2.receive(data)
        self._tell()
        return True

    def _read(self) -> bytes:
        try:
            return self._sock.recv(65536)
        except OSError:
            return b""

    def _write(self) -> None:
        while self.http2.out:
            out = b"".join(self.http2.take_output())
            with contextlib.suppress(OSError):
                self._sock.sendall(out)
            self.http2.flushed(True)

    def _jobs_done(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()()

    def _on_frame(self, kind: int, flags: int) -> None:
        if kind == f.PING and not flags & f.ACK:
            self.pings_seen += 1

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()


class FrameWatcher:
    """Sees the headers of the frames in a byte stream."""

    def __init__(self, on_frame: Callable[[int, int], None], *, preface: bool) -> None:
        self._on_frame = on_frame
        self._data = b""
        self._skip = len(f.PREFACE) if preface else 0

    def feed(self, data: bytes) -> None:
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._data += data[skipped:]
        while not self._skip and len(self._data) >= f.HEADER_SIZE:
            self._on_frame(self._data[3], self._data[4])
            size = f.HEADER_SIZE + int.from_bytes(self._data[:3], "big")
            self._skip = max(0, size - len(self._data))
            self._data = self._data[size:]


class Listener:
    """A TCP port on loopback where every connection becomes a server connection in a pump."""

    def __init__(self, on_request: Callable[[Stream, Headers], StreamHandler]) -> None:
        self.pumps: list[Pump] = []
        self._on_request = on_request
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._sock.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._sock.accept()
                pump = Pump(sock, Http2Connection(client=False, on_request=self._on_request))
                self.pumps.append(pump)  # before the first answer is sent, so that its receiver finds it here
                pump.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(PATIENCE_SECONDS)
        for pump in self.pumps:
            pump.close()


@contextlib.contextmanager
def dialled(port: int) -> Iterator[Pump]:
    """A client connection to a port on loopback."""
    pump = Pump(socket.create_connection(("127.0.0.1", port)), Http2Connection(client=True)).start()
    try:
        yield pump
    finally:
        pump.close()
