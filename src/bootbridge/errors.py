"""The base classes of our exceptions, by cause and reaction.

``PeerError``: the peer sent something invalid; its connection is closed. ``LocalError``: a bug; it is
reported. ``OperatorError``: invalid configuration; one line is printed and the process exits.
"""

from __future__ import annotations


class BootbridgeError(Exception):
    """Base class of all our exceptions."""


class PeerError(BootbridgeError):
    """The peer violated the protocol; ``code`` is the protocol's error code for it."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class LocalError(BootbridgeError):
    """We would have violated the protocol: a bug on our side."""


class OperatorError(BootbridgeError):
    """An error for the operator, rendered as ``subject: problem (hint)``; the hint is the fix."""

    def __init__(self, message: str, *, subject: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.subject = subject
        self.hint = hint

    def __str__(self) -> str:
        text = super().__str__()
        if self.subject and self.subject not in text:
            text = f"{self.subject}: {text}"
        return f"{text} ({self.hint})" if self.hint else text

    @property
    def lines(self) -> list[str]:
        """Returns the error as it is printed; a document with several errors has a line for each."""
        return [str(self)]
