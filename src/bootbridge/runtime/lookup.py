"""DNS lookups, each in its own daemon thread.

asyncio's resolver shares a few threads: some names whose DNS servers do not answer would block all
other lookups. Daemon threads do not delay the end of the process either.

A lookup without an answer occupies its thread longer than its callers wait. So callers of one name share
one lookup, also one whose earlier callers have gone; the names of one domain, which usually have the same DNS
servers, have a share of all lookups; and so have the names that a tunnel's callers choose.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

LOOKUPS_MAX: Final = 256
LOOKUPS_PER_DOMAIN_MAX: Final = 64
# The rest is for names of this program's own configuration, such as its servers.
DIAL_LOOKUPS_MAX: Final = 192

Found = list[tuple[Any, Any, int, str, Any]]


class LookupPurpose(Enum):
    """Who chose the name: this program's configuration, or a caller of the tunnel."""

    OWN = "own"
    DIAL = "dial"


@dataclass(frozen=True, eq=False, slots=True)
class _Lookup:
    """A lookup in progress. The answer is never an exception, because it may have no caller left."""

    host: str
    domain: str
    purpose: LookupPurpose
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Found | Exception]


_in_progress: Final[dict[tuple[asyncio.AbstractEventLoop, str], _Lookup]] = {}
_counts: Final[Counter[str | LookupPurpose]] = Counter()


async def look_up(host: str, port: int, purpose: LookupPurpose = LookupPurpose.OWN) -> Found:
    """Like ``socket.getaddrinfo`` for TCP; raises OSError, or UnicodeError for an invalid name."""
    loop = asyncio.get_running_loop()
    lookup = _in_progress.get((loop, host.lower())) or _start(host.lower(), purpose, loop)
    found = await asyncio.shield(lookup.answer)
    if isinstance(found, Exception):
        raise found
    return [(*entry[:4], (entry[4][0], port, *entry[4][2:])) for entry in found]


def _start(host: str, purpose: LookupPurpose, loop: asyncio.AbstractEventLoop) -> _Lookup:
    domain = ".".join(host.rstrip(".").split(".")[-2:])
    if (
        len(_in_progress) >= LOOKUPS_MAX
        or _counts[domain] >= LOOKUPS_PER_DOMAIN_MAX
        or (purpose is LookupPurpose.DIAL and _counts[purpose] >= DIAL_LOOKUPS_MAX)
    ):
        raise socket.gaierror(socket.EAI_AGAIN, "too many lookups in progress")
    lookup = _Lookup(host, domain, purpose, loop, loop.create_future())
    thread = threading.Thread(target=_resolve, args=(lookup,), name=f"look up {host}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # no thread available on the machine or in the cgroup
        raise socket.gaierror(socket.EAI_AGAIN, str(error)) from error
    _in_progress[loop, host] = lookup
    _counts.update((domain, purpose))
    return lookup


def _resolve(lookup: _Lookup) -> None:
    result: Found | Exception
    try:
        result = socket.getaddrinfo(lookup.host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        result = error
    try:
        lookup.loop.call_soon_threadsafe(_deliver, lookup, result)
    except RuntimeError:
        _forget(lookup)  # the loop is closed


def _deliver(lookup: _Lookup, result: Found | Exception) -> None:
    _forget(lookup)
    if not lookup.answer.done():
        lookup.answer.set_result(result)


def _forget(lookup: _Lookup) -> None:
    del _in_progress[lookup.loop, lookup.host]
    for key in (lookup.domain, lookup.purpose):
        _counts[key] -= 1
        if not _counts[key]:
            del _counts[key]
