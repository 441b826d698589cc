"""How a flow handles a failure: it is retried after a while, or reported to the operator with a fix.

A flow raises one of these two; any other exception is a bug and ends the process.
"""

from __future__ import annotations

from bootbridge.errors import BootbridgeError


class Transient(BootbridgeError):
    """May disappear without operator action: retried with backoff and jitter."""


class MetadataUnavailable(Transient):
    """The infrastructure did not provide the metadata."""


class PeerRefused(Transient):
    """The peer rejected us. Its policy may change, so it is retried, at long intervals."""


class Fatal(BootbridgeError):
    """Retries cannot help; `advice` is what the operator must do."""

    def __init__(self, message: str, *, advice: str) -> None:
        super().__init__(message)
        self.advice = advice

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.advice})"
