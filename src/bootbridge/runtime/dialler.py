"""Dials TCP endpoints: resolves names, tries every address, and respects one timeout."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Final, cast

from bootbridge.metrics import Counter, Family
from bootbridge.ports.byte_ports import DialResult
from bootbridge.ports.timers import Timer
from bootbridge.runtime.byte_stream import PlainStream, set_tcp_options
from bootbridge.runtime.destination_policy import DestinationPolicy
from bootbridge.runtime.endpoint_policy import (
    DialRejected,
    LookupFailure,
    TcpEndpoint,
    check_endpoint,
    connect_failed,
    destination_refused,
    dial_timed_out,
    lookup_failed,
)
from bootbridge.runtime.lookup import LookupPurpose, look_up
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.sockets import WRITABLE
from bootbridge.runtime.tasks import spawn
from bootbridge.wire.addresses import join_host_port, parse_ip

DIAL_SECONDS_MAX: Final = 5.0
# The next address is tried in parallel when the previous one has not answered for this long.
NEXT_ADDRESS_SECONDS: Final = 0.25

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
Address = tuple[int, SocketAddress]  # family, what connect takes
# Returns the rule that refuses an IP address and port; empty if they may be dialled.
RefusedBy = Callable[[str, int], str]


class SocketDial:
    """Tries addresses until one connects; calls ``connected(socket)`` or ``failed(text, timed_out)``."""

    def __init__(
        self,
        pump: Pump,
        endpoint: TcpEndpoint,
        seconds: float,
        connected: Callable[[socket.socket], None],
        failed: Callable[[str, bool], None],
        refused_by: RefusedBy | None = None,
    ) -> None:
        self._pump = pump
        self._endpoint = endpoint
        self._refused_by = refused_by
        # Only dials for callers have a policy.
        self._purpose = LookupPurpose.OWN if refused_by is None else LookupPurpose.DIAL
        self._connected = connected
        self._failed = failed
        self._left: list[Address] = []
        self._trying: dict[int, socket.socket] = {}
        self._error = ""
        self._lookup: asyncio.Task[None] | None = None
        self._next: Timer | None = None
        self._done = False
        self._deadline = pump.timers.after(seconds, self._on_timeout)
        family_and_address = _literal(endpoint)
        if family_and_address is not None:
            self._left = self._permitted([family_and_address])
            self._try_next()
        else:
            self._lookup = spawn(self._resolve(), f"look up {endpoint.host}")

    def cancel(self) -> None:
        self._stop()

    # --- names

    async def _resolve(self) -> None:
        endpoint = self._endpoint
        try:
            found = await look_up(endpoint.host, endpoint.port, self._purpose)
        except socket.gaierror as error:
            failure = LookupFailure.NO_ANSWER if error.errno == socket.EAI_AGAIN else LookupFailure.NOT_FOUND
            self._fail(lookup_failed(endpoint.host, failure, endpoint.protocol))
        except (OSError, UnicodeError):
            self._fail(lookup_failed(endpoint.host, protocol=endpoint.protocol))
        else:
            wanted = {_FAMILIES[version] for version in endpoint.ip_versions}
            self._error = lookup_failed(endpoint.host, protocol=endpoint.protocol)
            self._left = self._permitted(
                [(entry[0], cast("SocketAddress", entry[4])) for entry in found if entry[0] in wanted]
            )
            self._try_next()
        self._pump.end_turn()

    # --- addresses

    def _permitted(self, found: list[Address]) -> list[Address]:
        """Drops the addresses that the destination policy refuses; the error names the first of them."""
        if self._refused_by is None:
            return found
        permitted = []
        refused = ""
        for family, address in found:
            rule = self._refused_by(address[0], address[1])
            if not rule:
                permitted.append((family, address))
            elif not refused:
                shown = join_host_port(address[0], address[1])
                refused = self._error = destination_refused(shown, rule, self._endpoint.protocol)
        return permitted

    def _try_next(self) -> None:
        if self._done:
            return
        if not self._left:
            if not self._trying:
                # Not synchronously: a result never comes before dial() returns.
                self._pump.soon(self._give_up)
            return
        family, address = self._left.pop(0)
        error = self._start(family, address)
        if error:
            self._error = connect_failed(join_host_port(address[0], address[1]), error)
            self._try_next()
        elif self._left:
            self._next = self._pump.timers.after(NEXT_ADDRESS_SECONDS, self._try_next)

    def _start(self, family: int, address: SocketAddress) -> int:
        try:
            sock = socket.socket(family, _STREAM)
        except OSError as error:
            return error.errno or errno.EMFILE
        try:
            result = sock.connect_ex(address)
        except OSError as error:
            result = error.errno or errno.EINVAL
        if result not in (0, errno.EINPROGRESS):
            sock.close()
            return result
        fd = sock.fileno()
        self._trying[fd] = sock
        if _is_connected(sock):
            # The result still comes after dial() has returned.
            self._pump.soon(lambda: self._on_connected(fd))
        else:
            self._pump.sockets.watch(fd, WRITABLE, lambda events: self._on_answer(fd, address))
        return 0

    def _on_answer(self, fd: int, address: SocketAddress) -> None:
        sock = self._trying[fd]
        self._pump.sockets.unwatch(fd)
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            del self._trying[fd]
            sock.close()
            self._error = connect_failed(join_host_port(address[0], address[1]), error)
            if self._next is not None:
                self._next.cancel()
            if self._left:
                self._try_next()
            elif not self._trying:
                self._give_up()
        else:
            self._on_connected(fd)
        self._pump.end_turn()

    def _on_connected(self, fd: int) -> None:
        sock = self._trying.pop(fd, None)
        if sock is not None:  # else the dial was cancelled
            self._stop()
            set_tcp_options(sock)
            self._connected(sock)

    # --- the end

    def _on_timeout(self) -> None:
        looking_up = not self._trying and not self._left
        self._stop()
        endpoint = self._endpoint
        if looking_up:
            self._failed(lookup_failed(endpoint.host, LookupFailure.TIMED_OUT, endpoint.protocol), True)
        else:
            self._failed(dial_timed_out(endpoint.address, endpoint.protocol), True)

    def _give_up(self) -> None:
        if not self._done:
            self._fail(self._error)

    def _fail(self, error: str) -> None:
        if not self._done:
            self._stop()
            self._failed(error, False)

    def _stop(self) -> None:
        self._done = True
        self._deadline.cancel()
        if self._next is not None:
            self._next.cancel()
        if self._lookup is not None and self._lookup is not _current_task():
            self._lookup.cancel()
        for fd, sock in self._trying.items():
            self._pump.sockets.unwatch(fd)
            sock.close()
        self._trying.clear()


class TcpDialler:
    """Dials for the agent, and for the server's strategy ``direct``."""

    def __init__(
        self,
        pump: Pump,
        destinations: DestinationPolicy,
        refusals: Family[Counter],
        seconds: float = DIAL_SECONDS_MAX,
    ) -> None:
        self._pump = pump
        self._destinations = destinations
        self._refusals = refusals
        self._seconds = seconds

    def dial(self, protocol: str, address: str, result: DialResult) -> _Dial:
        return _Dial(self._pump, check_endpoint(protocol, address), self._seconds, result, self._refused_by)

    def _refused_by(self, host: str, port: int) -> str:
        rule = self._destinations.refused_by(host, port)
        if rule:
            self._refusals.labels(rule).value += 1
        return rule


class _Dial:
    def __init__(
        self,
        pump: Pump,
        endpoint: TcpEndpoint | DialRejected,
        seconds: float,
        result: DialResult,
        refused_by: RefusedBy,
    ) -> None:
        self._pump = pump
        self._result: DialResult | None = result
        self._dial: SocketDial | None = None
        if isinstance(endpoint, DialRejected):
            pump.soon(lambda: self._refuse(endpoint.error))
        else:
            self._dial = SocketDial(
                pump, endpoint, seconds, self._connected, result.on_dial_failed, refused_by
            )

    def cancel(self) -> None:
        self._result = None
        if self._dial is not None:
            self._dial.cancel()

    def _refuse(self, error: str) -> None:
        if self._result is not None:
            self._result.on_dial_failed(error, False)

    def _connected(self, sock: socket.socket) -> None:
        assert self._result is not None
        stream = PlainStream(self._pump, sock)
        stream.start(self._result.on_dialled(stream))


_STREAM: Final = int(socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
_FAMILIES: Final = {4: int(socket.AF_INET), 6: int(socket.AF_INET6)}


@lru_cache(maxsize=256)
def _literal(endpoint: TcpEndpoint) -> Address | None:
    """Returns the socket address of a literal IP; None for a name or scoped address, which need a lookup."""
    ip = parse_ip(endpoint.host)
    if ip is None:
        return None
    if isinstance(ip, IPv4Address):
        return _FAMILIES[4], (str(ip), endpoint.port)
    return None if ip.scope_id else (_FAMILIES[6], (str(ip), endpoint.port, 0, 0))


def _is_connected(sock: socket.socket) -> bool:
    """Checks whether the handshake is complete, as it often is on one host: saves a round through the
    event loop. (A second connect() would swallow the error.)"""
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
