"""Who is at fault, and what to do about it.

A ``PeerError`` was caused by what the other end sent, a ``LocalError`` by a bug on
our side, an ``OperatorError`` by what the person who runs us asked for. The class
decides the reaction: close that one connection, fail loudly, or print one line and
exit.
"""

from __future__ import annotations


class BootbridgeError(Exception):
    """Base of everything we raise on purpose."""


class PeerError(BootbridgeError):
    """The other end broke the protocol; ``code`` is what the protocol answers."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class LocalError(BootbridgeError):
    """We were about to break the protocol ourselves: a bug, never the peer's doing."""


class OperatorError(BootbridgeError):
    """A flag, file or field is wrong. ``subject`` names it, ``hint`` says how to mend it."""

    def __init__(self, message: str, *, subject: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.subject = subject
        self.hint = hint

    def __str__(self) -> str:
        text = super().__str__()
        if self.subject and self.subject not in text:
            text = f"{self.subject}: {text}"
        return f"{text} ({self.hint})" if self.hint else text
