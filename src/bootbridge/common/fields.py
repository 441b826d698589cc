"""Reads a document that an operator wrote: each field is asked for by name and type, none is overlooked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bootbridge.errors import OperatorError


class Fields:
    """A mapping from a file; `subject` is what errors call it."""

    def __init__(self, document: Any, subject: str) -> None:
        if document is None:
            document = {}
        if not isinstance(document, Mapping):
            raise OperatorError("is not a mapping", subject=subject)
        self._document = document
        self._subject = subject
        self._asked: list[str] = []

    def name(self, field: str) -> str:
        return f"{self._subject}.{field}" if self._subject else field

    def any(self, field: str, default: Any = None) -> Any:
        self._asked.append(field)
        value = self._document.get(field)
        return default if value is None else value

    def text(self, field: str, default: str = "", *, required: bool = False) -> str:
        value = self.any(field, default)
        if not isinstance(value, str):
            raise OperatorError("is not text", subject=self.name(field))
        if required and not value:
            raise OperatorError("is missing", subject=self.name(field))
        return value

    def path(self, field: str, default: str = "") -> Path:
        """An absolute path: a program that an init system starts has no folder of its own."""
        path = Path(self.text(field, default, required=not default))
        if not path.is_absolute():
            raise OperatorError(f"{str(path)!r} is not an absolute path", subject=self.name(field))
        return path

    def texts(self, field: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        value = self.any(field, list(default))
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise OperatorError("is not a list of texts", subject=self.name(field))
        return tuple(value)

    def seconds(self, field: str, default: float) -> float:
        value = self.any(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise OperatorError("is not a number of seconds", subject=self.name(field))
        return float(value)

    def port(self, field: str, default: int) -> int:
        value = self.any(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 65536:
            raise OperatorError("is not a port", subject=self.name(field))
        return value

    def within(self, field: str) -> Fields:
        return Fields(self.any(field), self.name(field))

    def no_others(self) -> None:
        """Call it last: a field that was not asked for is a mistake of whoever wrote it."""
        for key in self._document:
            if key not in self._asked:
                known = ", ".join(self._asked)
                raise OperatorError("is unknown", subject=self.name(str(key)), hint=f"known are: {known}")
