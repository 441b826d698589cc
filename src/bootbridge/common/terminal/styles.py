"""The colours and marks of all verbs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# Names of styles, and what they are for rich. Only the 16 colours that every theme defines.
STYLES = {
    "": "",
    "good": "green",
    "bad": "bold red",
    "warning": "yellow",
    "dim": "dim",
    "strong": "bold",
    "command": "bold cyan",
}


class Mark(Enum):
    """The verdict of a line: its sign on a terminal, its word everywhere else, its style."""

    GOOD = ("✓", "ok", "good")
    BAD = ("✗", "FAIL", "bad")
    WARNING = ("!", "!", "warning")
    UNKNOWN = ("?", "?", "warning")
    SKIPPED = ("·", "-", "dim")
    NONE = ("", "", "")

    @property
    def style(self) -> str:
        return self.value[2]

    def sign(self, unicode: bool) -> str:
        return self.value[0] if unicode else self.value[1]

    @staticmethod
    def width(unicode: bool) -> int:
        return 1 if unicode else 4


@dataclass(frozen=True)
class Styled:
    """A text with the name of a style."""

    text: str
    style: str
