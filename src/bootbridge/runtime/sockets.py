"""Polls our sockets with one epoll inside asyncio's selector.

asyncio's ``add_reader`` wraps every event in a callback handle and, with uvloop, needs up to six system calls
to watch and to forget a socket. Here watching is one call, forgetting a closed socket none, and all sockets
that are ready at once form one *batch*: their output on a shared HTTP/2 connection leaves together.

Sockets in a TLS handshake are in a second epoll, of which each batch serves only a few: a handshake takes
about a millisecond, and a thousand agents that reconnect at once must not delay the callers.
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
# About 2 ms of handshakes between two rounds of all other sockets.
SLOW_PER_BATCH: Final = 2


class Sockets(selectors.BaseSelector):
    """The selector of the event loop: our sockets directly, asyncio's in a nested selector."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._actions: dict[int, Callable[[int], None]] = {}
        self._new: set[int] = set()
        self._slow_epoll = select.epoll()
        self._slow: set[int] = set()
        self._epoll.register(self._slow_epoll.fileno(), READABLE)
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
        if fd in self._slow:
            self.unwatch(fd)
        if fd in self._actions:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
            self._new.add(fd)
        self._actions[fd] = action

    def watch_slow(self, fd: int, events: int, action: Callable[[int], None]) -> None:
        """As ``watch``, for an action that takes long: each batch serves only a few of these sockets."""
        if fd in self._slow:
            self._slow_epoll.modify(fd, events)
        else:
            self.unwatch(fd)
            self._slow_epoll.register(fd, events)
            self._slow.add(fd)
            self._new.add(fd)
        self._actions[fd] = action

    def unwatch(self, fd: int) -> None:
        if self._actions.pop(fd, None) is not None:
            if fd in self._slow:
                self._slow.discard(fd)
                self._slow_epoll.unregister(fd)
            else:
                self._epoll.unregister(fd)

    def forget(self, fd: int) -> None:
        """Unwatches a socket that is closed right after; the kernel then removes it from epoll itself."""
        self._actions.pop(fd, None)
        self._slow.discard(fd)

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
            self._new.clear()
            self._serve_each(ready)
            if self._slow:
                self._serve_each(self._slow_epoll.poll(0, SLOW_PER_BATCH))
            try:
                self.on_batch_end()
            except Exception as error:
                self.on_failure(error)
            self.in_batch = False
        return self._others_ready or self.interrupted

    def _serve_each(self, ready: list[tuple[int, int]]) -> None:
        actions, new = self._actions, self._new
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
        self._slow_epoll.close()
        self._epoll.close()
