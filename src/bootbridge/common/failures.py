"""How a failure is dealt with: tried again after a while, or told to the operator with what to do.

Whatever a flow raises is one of these two; anything else is a bug and ends the process as such.
"""

from __future__ import annotations

from bootbridge.errors import BootbridgeError


class Transient(BootbridgeError):
    """May be gone by itself: try again, with backoff and jitter."""


class MetadataUnavailable(Transient):
    """The infrastructure did not say what was asked."""


class PeerRefused(Transient):
    """The peer looked at us and said no. Its policy may be changed, so it is tried again, at leisure."""


class Fatal(BootbridgeError):
    """No retry can help; `advice` says what the operator must do."""

    def __init__(self, message: str, *, advice: str) -> None:
        super().__init__(message)
        self.advice = advice

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.advice})"
