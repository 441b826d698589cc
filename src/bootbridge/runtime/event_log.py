"""The cores' notes, as log lines."""

from __future__ import annotations

import logging

from bootbridge.runtime import logs


class LoggingEventLog:
    """Made after logging is configured: notes that nobody wants to read cost nothing then."""

    def __init__(self, name: str) -> None:
        self._name = name
        if not logging.getLogger(name).isEnabledFor(logs.DEBUG):
            self.debug = _nothing  # type: ignore[method-assign]

    def info(self, message: str, **fields: object) -> None:
        logs.event(self._name, logs.INFO, message, **fields)

    def warning(self, message: str, **fields: object) -> None:
        logs.event(self._name, logs.WARNING, message, **fields)

    def debug(self, message: str, **fields: object) -> None:
        logs.event(self._name, logs.DEBUG, message, **fields)


def _nothing(message: str, **fields: object) -> None:
    return None
