"""DNS lookups, each in its own daemon thread.

asyncio's resolver shares a few threads: some names whose DNS servers do not answer would block all
other lookups. Daemon threads do not delay the end of the process either.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any, Final

LOOKUPS_MAX: Final = 256

_in_progress = 0

Found = list[tuple[Any, Any, int, str, Any]]


async def look_up(host: str, port: int) -> Found:
    """Like ``socket.getaddrinfo`` for TCP; raises OSError, or UnicodeError for an invalid name."""
    global _in_progress
    if _in_progress >= LOOKUPS_MAX:
        raise socket.gaierror(socket.EAI_AGAIN, "too many lookups in progress")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Found] = loop.create_future()
    thread = threading.Thread(
        target=_resolve, args=(host, port, loop, answer), name=f"look up {host}", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:  # no thread available on the machine or in the cgroup
        raise socket.gaierror(socket.EAI_AGAIN, str(error)) from error
    _in_progress += 1
    return await answer


def _resolve(host: str, port: int, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Found]) -> None:
    result: Found | Exception
    try:
        result = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        result = error
    try:
        loop.call_soon_threadsafe(_deliver, answer, result)
    except RuntimeError:
        pass  # the loop is closed


def _deliver(answer: asyncio.Future[Found], result: Found | Exception) -> None:
    global _in_progress
    _in_progress -= 1
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
