"""Polls our sockets with one epoll inside asyncio's selector.

asyncio's ``add_reader`` wraps every event in a callback handle and, with uvloop, needs up to six system calls
to watch and to forget a socket. Here watching is one call, forgetting a closed socket none, and all sockets
that are ready at once form one *batch*: their output on a shared HTTP/2 connection leaves together.
"""

from __future__ import annotations

import select
import selectors
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
# Always reported: the connection is closed in both directions.
GONE: Final = select.EPOLLHUP | select.EPOLLERR

_BATCH_MAX: Final = 256


class Sockets(selectors.BaseSelector):
    """The selector of the event loop: our sockets directly, asyncio's in a nested selector."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._actions: dict[int, Callable[[int], None]] = {}
        self._new: set[int] = set()
        self._others = selectors.EpollSelector()
        self._others_fd = self._others.fileno()
        self._epoll.register(self._others_fd, READABLE)
        self._others_ready = False
        self.in_batch = False
        self.interrupted = False  # asyncio has a callback to run
        self.on_batch_end: Callable[[], None] = lambda: None
        self.on_failure: Callable[[Exception], None] = lambda error: None

    # --- ours

    def watch(self, fd: int, events: int, action: Callable[[int], None]) -> None:
        """Calls ``action(events)`` whenever the socket is ready; the action must not await."""
        if fd in self._actions:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
            self._new.add(fd)
        self._actions[fd] = action

    def unwatch(self, fd: int) -> None:
        if self._actions.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def forget(self, fd: int) -> None:
        """Unwatches a socket that is closed right after; the kernel then removes it from epoll itself."""
        self._actions.pop(fd, None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Serves our sockets until asyncio has something to do or ``timeout`` has passed.

        Returning to asyncio's loop after every batch would cost more than a small batch itself.
        """
        self.interrupted = False
        poll = self._epoll.poll
        if timeout is None:
            while not self._serve(poll(None, _BATCH_MAX)):
                pass
        else:
            deadline = monotonic() + timeout
            while not self._serve(poll(timeout, _BATCH_MAX)):
                timeout = deadline - monotonic()
                if timeout <= 0:
                    break
        return self._others.select(0) if self._others_ready else []

    def _serve(self, ready: list[tuple[int, int]]) -> bool:
        """Serves one batch; returns True if asyncio has something to do."""
        self._others_ready = False
        if ready:
            self.in_batch = True
            actions, new = self._actions, self._new
            new.clear()
            for fd, events in ready:
                action = actions.get(fd)
                if action is None:
                    if fd == self._others_fd:
                        self._others_ready = True
                elif fd not in new:  # else this event was for the previous socket with that number
                    try:
                        action(events)
                    except Exception as error:
                        self.on_failure(error)
            try:
                self.on_batch_end()
            except Exception as error:
                self.on_failure(error)
            self.in_batch = False
        return self._others_ready or self.interrupted

    # --- asyncio's

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._others.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._others.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._others.modify(fileobj, events, data)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._others.get_key(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._others.get_map()

    def close(self) -> None:
        self._others.close()
        self._epoll.close()
