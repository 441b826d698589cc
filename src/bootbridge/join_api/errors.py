"""How a request can end without a ticket: the caller's fault, or nobody's and worth another try."""

from __future__ import annotations

from bootbridge.errors import BootbridgeError


class JoinRefused(BootbridgeError):
    """The caller is not what it claims, or not allowed. The text is told to it and written to the audit."""


class RetryLater(BootbridgeError):
    """Nothing is wrong with the caller; it may ask again in a while."""
