"""Relays the TPM commands of attestation from a unix socket to a TPM: `bootbridge tpm-helper`.

A container can use a host's device only if it is privileged. So the join service, which faces the network,
has no device: it connects to this helper, which opens no network socket and accepts from processes of its own
user only the commands of quotes and credential activation. Through it, no caller can extend a PCR, write NV
memory or change the TPM's configuration.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from bootbridge.errors import OperatorError
from bootbridge.runtime import logs
from bootbridge.trust.tpm.codec import MalformedTpmData
from bootbridge.trust.tpm.commands import HEADER_BYTES, MESSAGE_BYTES_MAX, CommandCode
from bootbridge.trust.tpm.device import Transceive, opener_of, receive_exactly

# All that our attestation sends; PCR_EVENT is only for the node's lock, which runs on the node itself.
RELAYED: Final = frozenset(CommandCode) - {CommandCode.PCR_EVENT}
# A client between two commands; a TPM serves one client at a time.
IDLE_SECONDS_MAX: Final = 30.0
_BACKLOG: Final = 16
_RC_COMMAND_CODE: Final = 0x143
_TAG_NO_SESSIONS: Final = 0x8001
_CREDENTIALS: Final = struct.Struct("3i")


class TpmRelay:
    """Serves one connection after the other, until the process ends."""

    def __init__(self, device: str, path: Path) -> None:
        self._device = device
        self._open: Callable[[], AbstractContextManager[Transceive]] = opener_of(device, "--device")
        self._path = path

    def listen(self) -> socket.socket:
        """Returns the listening socket, with mode 0600; replaces one of an earlier run."""
        try:
            self._path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            before = os.umask(0o177)
            try:
                listener.bind(str(self._path))
            finally:
                os.umask(before)
        except OSError as error:
            problem = f"cannot listen: {error.strerror or error}"
            raise OperatorError(problem, subject=f"--socket {self._path}") from error
        listener.listen(_BACKLOG)
        return listener

    def serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                self._serve_connection(connection)

    def _serve_connection(self, connection: socket.socket) -> None:
        if (user := _user_of(connection)) != os.geteuid():
            _log(logs.WARNING, "connection refused", user=user)
            return
        connection.settimeout(IDLE_SECONDS_MAX)
        try:
            with self._open() as exchange:
                while command := _command(connection):
                    connection.sendall(self._answer(command, exchange))
        except (OSError, MalformedTpmData) as error:
            _log(logs.WARNING, "connection ended", device=self._device, reason=error)

    def _answer(self, command: bytes, exchange: Transceive) -> bytes:
        code = int.from_bytes(command[6:10], "big")
        if code not in RELAYED:
            _log(logs.WARNING, "command refused", code=f"0x{code:x}")
            return struct.pack(">HII", _TAG_NO_SESSIONS, HEADER_BYTES, _RC_COMMAND_CODE)
        return exchange(command)


def _command(connection: socket.socket) -> bytes:
    """Returns the next command; empty if the client has closed the connection."""
    first = connection.recv(1)
    if not first:
        return b""
    head = first + receive_exactly(connection, HEADER_BYTES - 1)
    size = int.from_bytes(head[2:6], "big")
    if not HEADER_BYTES <= size <= MESSAGE_BYTES_MAX:
        raise MalformedTpmData(f"malformed command header: size {size}")
    return head + receive_exactly(connection, size - HEADER_BYTES)


def _user_of(connection: socket.socket) -> int:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _process, user, _group = _CREDENTIALS.unpack(data)
    return int(user)


def _log(level: int, message: str, **fields: object) -> None:
    logs.event("tpm-helper", level, message, **fields)
