"""The cores' notes, as log lines."""

from __future__ import annotations

from bootbridge.runtime import logs


class LogNotebook:
    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, message: str, **fields: object) -> None:
        logs.event(self._name, logs.INFO, message, **fields)

    def warning(self, message: str, **fields: object) -> None:
        logs.event(self._name, logs.WARNING, message, **fields)

    def debug(self, message: str, **fields: object) -> None:
        logs.event(self._name, logs.DEBUG, message, **fields)
