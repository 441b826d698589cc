"""How a request ends without a ticket: refused, or to be repeated later."""

from __future__ import annotations

from bootbridge.errors import BootbridgeError


class JoinRefused(BootbridgeError):
    """The claims do not match, or the policy does not allow it. The caller and the audit log get the text."""


class RetryLater(BootbridgeError):
    """Temporary, and not the caller's fault."""
