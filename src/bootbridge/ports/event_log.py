"""The port through which the protocol cores report events to the operator.

A module of its own, because the cores must not import `logging`.
"""

from __future__ import annotations

from typing import Protocol


class EventLog(Protocol):
    """Writes one line per event: a constant message, and fields for everything variable."""

    def info(self, message: str, **fields: object) -> None: ...
    def warning(self, message: str, **fields: object) -> None: ...
    def debug(self, message: str, **fields: object) -> None: ...
