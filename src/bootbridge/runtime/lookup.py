"""Names to addresses, each lookup in a thread of its own.

The loop's own resolver shares a handful of threads: a few names whose servers do not answer
would hold up everybody else's. These threads are daemons, so that a lookup that nobody waits
for any more does not hold up the end of the process either.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any, Final

LOOKUPS_MAX: Final = 256

_under_way = 0

Found = list[tuple[Any, Any, int, str, Any]]


async def look_up(host: str, port: int) -> Found:
    """As ``socket.getaddrinfo`` for TCP: raises OSError, UnicodeError for what cannot be a name."""
    global _under_way
    if _under_way >= LOOKUPS_MAX:
        raise socket.gaierror(socket.EAI_AGAIN, "too many lookups are under way")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Found] = loop.create_future()
    thread = threading.Thread(
        target=_ask, args=(host, port, loop, answer), name=f"look up {host}", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:  # the machine, or our control group, has no thread left
        raise socket.gaierror(socket.EAI_AGAIN, str(error)) from error
    _under_way += 1
    return await answer


def _ask(host: str, port: int, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Found]) -> None:
    result: Found | Exception
    try:
        result = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        result = error
    try:
        loop.call_soon_threadsafe(_tell, answer, result)
    except RuntimeError:
        pass  # the loop is closed: nobody is left to hear it


def _tell(answer: asyncio.Future[Found], result: Found | Exception) -> None:
    global _under_way
    _under_way -= 1
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
