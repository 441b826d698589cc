"""Serves a page only for the program's own names, against DNS rebinding.

A web site can make its own name resolve to 127.0.0.1, and then read in a visitor's browser what listens
there. The browser sends that name as Host, so requests for names that are not ours are refused. A Host that
is an IP address is accepted: no site can choose what an address resolves to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from bootbridge.runtime.admin_http import AdminRequest, AdminResponse, Route
from bootbridge.wire.addresses import host_of, parse_ip

# "Misdirected Request" (RFC 9110): the request is for a host that this program is not.
MISDIRECTED = 421
LOCAL_NAMES = ("localhost",)


def is_own_host(host: str, names: Iterable[str]) -> bool:
    """Returns whether a Host header is an IP address, `localhost` or one of `names`."""
    name = host_of(host).lower()
    return parse_ip(name) is not None or name in LOCAL_NAMES or name in [own.lower() for own in names if own]


def for_own_hosts(routes: dict[str, Route], *names: str) -> dict[str, Route]:
    """Returns routes that refuse other hosts."""
    return {path: _checked(route, names) for path, route in routes.items()}


def _checked(route: Route, names: tuple[str, ...]) -> Route:
    def answer(request: AdminRequest) -> AdminResponse | Awaitable[AdminResponse]:
        if not is_own_host(request.host, names):
            text = f"Host {request.host[:100]!r}: not served for this name (use an IP address or localhost)\n"
            return AdminResponse(text, MISDIRECTED)
        return route(request)

    return answer
