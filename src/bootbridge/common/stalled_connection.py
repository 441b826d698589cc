"""The rule by which the viewers of the status document, page and `top`, call a connection stalled."""

from __future__ import annotations


def is_stalled(waiting_for: str, queued_up: float, rate_up: float | None, rate_down: float | None) -> bool:
    """Whether a side does not read: bytes wait, and none was passed on since the last reading.

    Without a rate, as in a first reading, it does not count. A queue alone does not show a stall: a fast
    transfer always has one. The program itself counts a connection after 5 s, and only on the side that has
    the queue.
    """
    return waiting_for.endswith("to read") and (rate_up if queued_up else rate_down) == 0
