"""Where a server's frontend is, and how to connect to it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bootbridge.errors import OperatorError
from bootbridge.frontend_client.call import ConnectCall, FrontendMode, GrpcCall, TunnelCall
from bootbridge.runtime.tls_failure import tls_failure
from bootbridge.wire.addresses import join_host_port
from bootbridge.wire.http2_connection import Http2Connection

READ_BYTES: Final = 65536
_HTTP2_SETTINGS: Final = 4
_ALPN: Final = {"h2": FrontendMode.GRPC, "http/1.1": FrontendMode.HTTP_CONNECT}


class FrontendUnreachable(OperatorError):
    """There is no connection to the frontend itself; nothing was dialled."""


@dataclass
class FrontendConnection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    mode: FrontendMode | None  # None: not known before the server answers


class FrontendAddress(ABC):
    """``mode``: None until it is known; the first dial finds it out."""

    mode: FrontendMode | None

    @abstractmethod
    async def connect(self) -> FrontendConnection:
        """Connects; raises FrontendUnreachable."""

    def new_call(self, mode: FrontendMode, address: str) -> TunnelCall:
        return ConnectCall(address) if mode is FrontendMode.HTTP_CONNECT else GrpcCall(address)


@dataclass
class UnixFrontend(FrontendAddress):
    path: Path
    mode: FrontendMode | None = None

    def __str__(self) -> str:
        return str(self.path)

    async def connect(self) -> FrontendConnection:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with reachable_path(self.path) as path:
                await asyncio.get_running_loop().sock_connect(sock, path)
            reader, writer = await asyncio.open_unix_connection(sock=sock)
        except OSError as error:
            sock.close()
            raise _unreachable(self, error) from error
        except BaseException:
            sock.close()
            raise
        return FrontendConnection(reader, writer, self.mode)


@dataclass
class TcpFrontend(FrontendAddress):
    """A frontend over TCP, which always requires a client certificate."""

    host: str
    port: int
    ca: str
    cert: str
    key: str
    mode: FrontendMode | None = None

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)

    async def connect(self) -> FrontendConnection:
        try:
            reader, writer = await asyncio.open_connection(
                self.host, self.port, ssl=self._context(), server_hostname=self.host
            )
        except ssl.SSLError as error:
            raise FrontendUnreachable(tls_failure(error), subject=str(self)) from error
        except OSError as error:
            raise _unreachable(self, error) from error
        tls = writer.get_extra_info("ssl_object")
        return FrontendConnection(reader, writer, self.mode or _ALPN.get(tls.selected_alpn_protocol()))

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load(context.load_verify_locations, "--ca-cert", self.ca)
        _load(lambda cert: context.load_cert_chain(cert, self.key), "--cert", self.cert)
        offered = [name for name, mode in _ALPN.items() if self.mode in (None, mode)]
        context.set_alpn_protocols(offered)
        return context

    def new_call(self, mode: FrontendMode, address: str) -> TunnelCall:
        return (
            ConnectCall(address) if mode is FrontendMode.HTTP_CONNECT else GrpcCall(address, scheme="https")
        )


def _load(load: Callable[[str], None], flag: str, path: str) -> None:
    try:
        load(path)
    except ssl.SSLError as error:
        reason = (error.reason or "invalid PEM file").replace("_", " ").lower()
        raise OperatorError(f"cannot use {path}: {reason}", subject=flag) from error
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror}", subject=flag) from error


def _unreachable(frontend: FrontendAddress, error: OSError) -> FrontendUnreachable:
    reason = error.strerror or str(error) or type(error).__name__
    hints = {
        FileNotFoundError: "is the server running, with this --uds-name?",
        ConnectionRefusedError: "is the server running?",
        PermissionError: "run it as the user of the server, or as root",
    }
    hint = hints.get(type(error), "")
    return FrontendUnreachable(f"frontend of the server: {reason}", subject=str(frontend), hint=hint)


@contextmanager
def reachable_path(path: Path) -> Iterator[str]:
    """Returns a path to a unix socket that is below the kernel's limit of 108 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def detect_mode(path: Path, seconds: float) -> FrontendMode | None:
    """Returns the mode of a server, from its answer to an HTTP/2 preface; None if it closes. Blocks."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(seconds)
        with reachable_path(path) as short:
            sock.connect(short)
        sock.sendall(b"".join(Http2Connection(client=True).take_output()))
        try:
            answer = sock.recv(READ_BYTES)
        except OSError:
            return None
    if answer.startswith(b"HTTP/1."):
        return FrontendMode.HTTP_CONNECT
    return FrontendMode.GRPC if len(answer) > 3 and answer[3] == _HTTP2_SETTINGS else None
