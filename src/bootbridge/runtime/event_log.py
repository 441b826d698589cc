"""Writes the cores' event log to the process log."""

from __future__ import annotations

from bootbridge.runtime import logs


class LoggingEventLog:
    """Must be created after logging is configured: disabled debug events then cost nothing."""

    def __init__(self, name: str) -> None:
        self._name = name
        if not logs.debug_enabled(name):
            self.debug = _nothing  # type: ignore[method-assign]

    def info(self, message: str, **fields: object) -> None:
        logs.event(self._name, logs.INFO, message, **fields)

    def warning(self, message: str, **fields: object) -> None:
        logs.event(self._name, logs.WARNING, message, **fields)

    def debug(self, message: str, **fields: object) -> None:
        logs.event(self._name, logs.DEBUG, message, **fields)


def _nothing(message: str, **fields: object) -> None:
    return None
