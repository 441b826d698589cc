"""Opens connections to a TPM and keeps its blocking I/O off the event loop.

    /dev/tpmrm0          the kernel's resource manager (/dev/tpm0 works too, for one program at a time)
    unix:/run/swtpm.sock swtpm's server socket
    tcp:127.0.0.1:2321   the same over TCP

Each use opens its own connection: a TPM or emulator serves one client at a time, and others wait.
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
from bootbridge.trust.tpm.codec import MalformedTpmData
from bootbridge.trust.tpm.commands import HEADER_BYTES, MESSAGE_BYTES_MAX
from bootbridge.trust.tpm.connection import SavedKey, TpmConnection
from bootbridge.trust.tpm.structures import PublicArea

T = TypeVar("T")
Transceive = Callable[[bytes], bytes]

# A response may wait for another client, and creating an RSA key takes seconds, sometimes a minute.
RESPONSE_SECONDS_MAX = 90.0
CONNECT_SECONDS_MAX = 30.0
_FORMS = "/dev/tpmrm0, unix:PATH or tcp:HOST:PORT"
_SIZE = slice(2, 6)


class TpmUnreachable(BootbridgeError):
    """The TPM's address cannot be opened, or does not respond."""


class TpmDevice:
    """A TPM's address. May be shared between tasks: uses are serialised."""

    def __init__(self, address: str, subject: str = "") -> None:
        self.address = address
        self._open, self._shared = _opener(address, subject)
        self._lock = asyncio.Lock()
        self._saved: dict[PublicArea, SavedKey] = {}

    def __repr__(self) -> str:
        return f"<TpmDevice {self.address}>"

    async def use(self, work: Callable[[TpmConnection], T]) -> T:
        """Runs `work` in a thread on a new connection; raises TpmUnreachable, TpmError, MalformedTpmData."""
        await self._lock.acquire()
        # A thread cannot be cancelled, so the thread and not the task holds the lock: a task that gave up on
        # a slow TPM must neither admit the next one meanwhile nor leave waiting threads behind.
        thread = asyncio.get_running_loop().run_in_executor(None, self._use, work)
        thread.add_done_callback(lambda _: self._lock.release())
        return await asyncio.shield(thread)

    def _use(self, work: Callable[[TpmConnection], T]) -> T:
        try:
            with self._open() as exchange:
                return work(TpmConnection(exchange, shared=self._shared, saved=self._saved))
        except OSError as error:
            raise TpmUnreachable(f"TPM {self.address}: {_problem(error)}") from error


def _problem(error: OSError) -> str:
    text = error.strerror or str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return f"{text} (check that the machine has a TPM and that its firmware enables it)"
    if error.errno == errno.EBUSY:
        return f"{text} (in use by another program: use /dev/tpmrm0)"
    if isinstance(error, PermissionError):
        return f"{text} (run it as root, or as a member of group tss)"
    return text


def opener_of(address: str, subject: str) -> Callable[[], AbstractContextManager[Transceive]]:
    """Returns the connection factory; raises OperatorError for an invalid address."""
    return _opener(address, subject)[0]


def _opener(address: str, subject: str) -> tuple[Callable[[], AbstractContextManager[Transceive]], bool]:
    """Returns (connection factory, whether it leads to a resource manager)."""
    scheme, _, rest = address.partition(":")
    if address.startswith("/"):
        return lambda: _character_device(address), Path(address).name.startswith("tpmrm")
    if scheme == "unix" and rest.startswith("/"):
        return lambda: _unix_socket(rest), False
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
        return lambda: _tcp_socket(host.strip("[]"), int(port)), False
    raise OperatorError(f"invalid TPM address {address!r}", subject=subject, hint=f"use {_FORMS}")


@contextmanager
def _character_device(path: str) -> Iterator[Transceive]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def exchange(command: bytes) -> bytes:
        os.write(descriptor, command)
        return os.read(descriptor, MESSAGE_BYTES_MAX)

    try:
        yield exchange
    finally:
        os.close(descriptor)


@contextmanager
def _unix_socket(path: str) -> Iterator[Transceive]:
    with socket.socket(socket.AF_UNIX) as connection:
        # With Python's timeout a full backlog is EAGAIN at once; SO_SNDTIMEO makes connect() wait.
        limit = struct.pack("ll", int(CONNECT_SECONDS_MAX), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.connect(path)
        yield _exchange_on(connection)


@contextmanager
def _tcp_socket(host: str, port: int) -> Iterator[Transceive]:
    with socket.create_connection((host, port), CONNECT_SECONDS_MAX) as connection:
        yield _exchange_on(connection)


def _exchange_on(connection: socket.socket) -> Transceive:
    connection.settimeout(RESPONSE_SECONDS_MAX)

    def exchange(command: bytes) -> bytes:
        connection.sendall(command)
        head = receive_exactly(connection, HEADER_BYTES)
        size = int.from_bytes(head[_SIZE], "big")
        if not HEADER_BYTES <= size <= MESSAGE_BYTES_MAX:
            raise MalformedTpmData(f"malformed response header: size {size}")
        return head + receive_exactly(connection, size - HEADER_BYTES)

    return exchange


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Raises ConnectionResetError if the connection ends before."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("connection closed before the response")
        data += part
    return bytes(data)
