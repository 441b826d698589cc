"""Which sockets are ready: one epoll for all of ours, asked where asyncio waits.

An event loop's own ``add_reader`` wraps every event in a callback handle and, with uvloop, spends up
to six system calls to watch and to forget a socket. Here watching is one, forgetting a closed socket
none, and all sockets that are ready at once are one *batch*: output for a shared HTTP/2 connection
is sent together at its end.
"""

from __future__ import annotations

import select
import selectors
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
# Reported whether asked for or not: the connection is over in both directions.
GONE: Final = select.EPOLLHUP | select.EPOLLERR

_BATCH_MAX: Final = 256


class Sockets(selectors.BaseSelector):
    """Our sockets, and behind them asyncio's: it waits here as it would in its own selector."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._actions: dict[int, Callable[[int], None]] = {}
        self._new: set[int] = set()
        self._others = selectors.EpollSelector()
        self._others_fd = self._others.fileno()
        self._epoll.register(self._others_fd, READABLE)
        self._others_ready = False
        self.in_batch = False
        self.interrupted = False  # asyncio has got something to do in the meantime
        self.on_batch_end: Callable[[], None] = lambda: None
        self.on_failure: Callable[[Exception], None] = lambda error: None

    # --- ours

    def watch(self, fd: int, events: int, action: Callable[[int], None]) -> None:
        """Call ``action(events)`` whenever the socket is ready for one of them. It must not await."""
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
        """The same for a socket that is closed in the same breath, which is enough for the kernel."""
        self._actions.pop(fd, None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Serve our sockets until asyncio itself has something to do, or ``timeout`` is over.

        Going back to asyncio's loop after every batch would cost more than a small batch itself.
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
        """One batch. True: asyncio has something to do."""
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
                elif fd not in new:  # else its number had another owner when this was reported
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
