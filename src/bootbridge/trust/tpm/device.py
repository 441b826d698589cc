"""Where a TPM is reached, and how its slowness is kept off the event loop.

    /dev/tpmrm0          the kernel's resource manager (/dev/tpm0 works too, for one program at a time)
    unix:/run/swtpm.sock swtpm's server socket
    tcp:127.0.0.1:2321   the same by TCP

A connection lives for one use: a chip or emulator serves one client at a time, and others wait.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.trust.tpm.chip import Chip
from bootbridge.trust.tpm.codec import MalformedTpmData
from bootbridge.trust.tpm.commands import HEADER_BYTES, MESSAGE_BYTES_MAX

T = TypeVar("T")
Exchange = Callable[[bytes], bytes]

# An answer may have to wait for whoever is connected before us, and making an RSA key takes seconds on a
# good day and a minute on a bad one.
ANSWER_SECONDS = 90.0
CONNECT_SECONDS = 30.0
_FORMS = "/dev/tpmrm0, unix:PATH or tcp:HOST:PORT"
_SIZE = slice(2, 6)


class TpmUnreachable(BootbridgeError):
    """Nobody answers where the TPM should be."""


class Device:
    """A TPM by its address. Safe to share between tasks: one use after the other."""

    def __init__(self, address: str, subject: str = "") -> None:
        self.address = address
        self._open, self._shared = _opener(address, subject)
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Device {self.address}>"

    async def use(self, work: Callable[[Chip], T]) -> T:
        """Run `work` in a thread, connected; raises TpmUnreachable, TpmError, MalformedTpmData."""
        await self._turn.acquire()
        # A thread cannot be cancelled. The turn is the thread's and not the task's: tasks that gave up on a
        # slow chip must neither let the next one in beside it nor pile up threads that wait.
        thread = asyncio.get_running_loop().run_in_executor(None, self._use, work)
        thread.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(thread)

    def _use(self, work: Callable[[Chip], T]) -> T:
        try:
            with self._open() as exchange:
                return work(Chip(exchange, shared=self._shared))
        except OSError as error:
            raise TpmUnreachable(f"the TPM at {self.address}: {_why(error)}") from error


def _why(error: OSError) -> str:
    text = error.strerror or str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return f"{text} (is there a TPM in this machine, and enabled in its firmware?)"
    if error.errno == errno.EBUSY:
        return f"{text} (another program has it open: use /dev/tpmrm0)"
    if isinstance(error, PermissionError):
        return f"{text} (run as root, or as a member of the group tss)"
    return text


def _opener(address: str, subject: str) -> tuple[Callable[[], AbstractContextManager[Exchange]], bool]:
    """(what opens a connection, whether a resource manager answers there)."""
    scheme, _, rest = address.partition(":")
    if address.startswith("/"):
        return lambda: _character_device(address), Path(address).name.startswith("tpmrm")
    if scheme == "unix" and rest.startswith("/"):
        return lambda: _unix_socket(rest), False
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
        return lambda: _tcp_socket(host.strip("[]"), int(port)), False
    raise OperatorError(f"{address!r} is no address of a TPM", subject=subject, hint=f"write {_FORMS}")


@contextmanager
def _character_device(path: str) -> Iterator[Exchange]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def exchange(command: bytes) -> bytes:
        os.write(descriptor, command)
        return os.read(descriptor, MESSAGE_BYTES_MAX)

    try:
        yield exchange
    finally:
        os.close(descriptor)


@contextmanager
def _unix_socket(path: str) -> Iterator[Exchange]:
    with socket.socket(socket.AF_UNIX) as connection:
        # With Python's own timeout a full queue is an error at once; the kernel's waits for a place in it.
        limit = struct.pack("ll", int(CONNECT_SECONDS), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.connect(path)
        yield _exchange_on(connection)


@contextmanager
def _tcp_socket(host: str, port: int) -> Iterator[Exchange]:
    with socket.create_connection((host, port), CONNECT_SECONDS) as connection:
        yield _exchange_on(connection)


def _exchange_on(connection: socket.socket) -> Exchange:
    connection.settimeout(ANSWER_SECONDS)

    def exchange(command: bytes) -> bytes:
        connection.sendall(command)
        head = _received(connection, HEADER_BYTES)
        size = int.from_bytes(head[_SIZE], "big")
        if not HEADER_BYTES <= size <= MESSAGE_BYTES_MAX:
            raise MalformedTpmData(f"the TPM announces an answer of {size} bytes")
        return head + _received(connection, size - HEADER_BYTES)

    return exchange


def _received(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the connection was closed before the answer")
        data += part
    return bytes(data)
