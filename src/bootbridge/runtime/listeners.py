"""Listening sockets: created with errors that name the flag, accepted from in batches."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from typing import Final

from bootbridge.errors import OperatorError
from bootbridge.runtime import logs
from bootbridge.runtime.accept_rate import AcceptRate
from bootbridge.runtime.byte_stream import set_tcp_options
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.sockets import READABLE

BACKLOG: Final = 1024
ACCEPTS_PER_TURN: Final = 32
# Pause after a failed accept, for example without free file descriptors.
RETRY_SECONDS: Final = 0.1
# The frontend socket is for its owner and group, as upstream's.
SOCKET_UMASK: Final = 0o007


class Listener:
    """Accepts connections on one socket and passes each to ``accepted``."""

    def __init__(
        self,
        pump: Pump,
        sock: socket.socket,
        accepted: Callable[[socket.socket], None],
        *,
        path: str = "",
        rate: AcceptRate | None = None,
    ) -> None:
        """``rate``: for a port that strangers reach."""
        self._pump = pump
        self._rate = rate
        self._sock = sock
        self._accepted = accepted
        self._is_unix = sock.family == socket.AF_UNIX
        self._path = path
        self._inode = _inode(path) if path else None
        self._closed = False
        self._accept_failed = False  # a failure is logged once, not per attempt
        self._start()

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    def _start(self) -> None:
        if not self._closed:
            self._pump.sockets.watch(self._sock.fileno(), READABLE, self._accept)

    def _accept(self, events: int) -> None:
        rate = self._rate
        for _ in range(ACCEPTS_PER_TURN):
            if rate is not None and not rate.permits():
                self._pause(rate.pause_seconds)
                break
            try:
                sock, _address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                self._on_failure(error)
                break
            self._accept_failed = False
            if rate is not None:
                rate.count()
            sock.setblocking(False)
            if not self._is_unix:
                set_tcp_options(sock)
            self._accepted(sock)
        self._pump.end_turn()

    def _on_failure(self, error: OSError) -> None:
        """Out of file descriptors or memory. Open connections continue."""
        if not self._accept_failed:
            self._accept_failed = True
            logs.event("listener", logs.WARNING, "accept failed", reason=error.strerror)
        self._pause(RETRY_SECONDS)

    def _pause(self, seconds: float) -> None:
        self._pump.sockets.unwatch(self._sock.fileno())
        self._pump.timers.after(seconds, self._start)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._pump.sockets.unwatch(self._sock.fileno())
        self._sock.close()
        # Only if it is still our socket: a new process may have replaced it.
        if self._path and _inode(self._path) == self._inode:
            os.unlink(self._path)


def tcp_socket(host: str, port: int, subject: str) -> socket.socket:
    """Binds a TCP port; an empty host means all addresses, IPv4 and IPv6."""
    try:
        if not host and socket.has_dualstack_ipv6():
            return _listening(
                socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return _listening(socket.create_server((host, port), family=family, backlog=BACKLOG))
    except (OSError, UnicodeError, OverflowError) as error:
        where = f"{host or '*'}:{port}"
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        hint = "stop the process that uses it, or choose another port" if in_use else "check address and port"
        raise OperatorError(
            f"cannot listen on {where}: {_text(error)}", subject=subject, hint=hint
        ) from error


def unix_socket(path: str, *, delete_existing: bool) -> socket.socket:
    """Binds a unix socket; with ``delete_existing``, replaces an existing socket but no other file."""
    subject = "--uds-name"
    if delete_existing:
        _remove_stale(path, subject)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(SOCKET_UMASK)
    try:
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        hint = "create the directory, or correct the path"
        if error.errno == errno.EADDRINUSE:
            hint = "remove the file, or set --delete-existing-uds-file"
        raise OperatorError(f"cannot listen on {path}: {_text(error)}", subject=subject, hint=hint) from error
    finally:
        os.umask(before)
    return _listening(sock)


def _listening(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock


def _remove_stale(path: str, subject: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise OperatorError(
            f"cannot stat {path}: {_text(error)}", subject=subject, hint="check the path"
        ) from error
    if not stat.S_ISSOCK(mode):
        raise OperatorError(
            f"{path} exists and is not a socket", subject=subject, hint="move it, or choose another path"
        )
    try:
        os.unlink(path)
    except OSError as error:
        raise OperatorError(
            f"cannot remove {path}: {_text(error)}",
            subject=subject,
            hint="remove this old socket, or run as its owner",
        ) from error


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _text(error: Exception) -> str:
    """Returns strerror(3)'s text: `socket.create_server` adds the address to the error's own."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (getattr(error, "strerror", None) or str(error)).lower()
