"""Opens listening sockets: for one address, for all addresses of a name, or for every local address."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from bootbridge.errors import OperatorError
from bootbridge.trust.attested.handshake import os_error_text

# A rack of machines may start in the same second.
BACKLOG: Final = 2048
EVERYWHERE: Final = (("::", socket.AF_INET6), ("0.0.0.0", socket.AF_INET))
# With port 0: a port that is free in one family may be in use in the other.
ATTEMPTS_MAX: Final = 10
_NO_SUCH_FAMILY: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)

Address = tuple[str, socket.AddressFamily]


async def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """``host`` "" is every address, IPv6 only where the machine supports it. Raises OperatorError."""
    try:
        addresses = EVERYWHERE if not host else await _addresses_of(host)
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return _bound(addresses, port, optional=not host)
            except OSError as error:
                if port or error.errno != errno.EADDRINUSE:
                    raise
        return _bound(addresses, port, optional=not host)
    except OSError as error:
        raise OperatorError(
            f"cannot listen: {os_error_text(error)}",
            subject=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            hint="use a free port and an address of this machine",
        ) from error


async def _addresses_of(host: str) -> Sequence[Address]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # The text keeps the scope of a link-local address.
    return list(dict.fromkeys((str(where[0]), family) for family, _, _, _, where in found))


def _bound(addresses: Sequence[Address], port: int, *, optional: bool) -> list[socket.socket]:
    """Returns one socket per address, all with the same port."""
    with ExitStack() as opened:
        sockets: list[socket.socket] = []
        for host, family in addresses:
            try:
                sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
            except OSError as error:
                if optional and family == socket.AF_INET6 and error.errno in _NO_SUCH_FAMILY:
                    continue
                raise
            sockets.append(opened.enter_context(sock))
            sock.setblocking(False)
            port = int(sock.getsockname()[1])
        opened.pop_all()
        return sockets
