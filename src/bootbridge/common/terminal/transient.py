"""The line that shows what runs now: at most one per process, erased before any other output.

Results go to stdout and progress to stderr, which are often the same terminal.
"""

from __future__ import annotations

import atexit
from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Held while anything is written to a terminal, so that a redrawn line does not mix with a result.
LOCK = RLock()
_erase: Callable[[], None] | None = None
_stop: Callable[[], None] | None = None


def drawn(erase: Callable[[], None]) -> None:
    """Remembers how to erase the line that was just drawn."""
    global _erase
    _erase = erase


def redrawn_until(stop: Callable[[], None]) -> None:
    """Remembers how to stop what redraws the line, for the end of the process."""
    global _stop
    if _stop is None:
        atexit.register(end)
    _stop = stop


def erase() -> None:
    """Erases the line, if there is one. It may be drawn again."""
    global _erase
    with LOCK:
        act, _erase = _erase, None
        if act:
            act()


def end() -> None:
    """Stops redrawing, and erases the line."""
    if _stop:
        _stop()
    erase()
