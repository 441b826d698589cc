"""How a call to the API server can fail: it said no, or it could not be asked."""

from __future__ import annotations

from bootbridge.errors import BootbridgeError


class KubeError(BootbridgeError):
    """The API server answered with an error; the fields are those of its Status object."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class KubeUnreachable(BootbridgeError):
    """No usable answer came: refused, timed out, cut off, or not speaking HTTP and JSON."""


class KubeThrottled(KubeUnreachable):
    """Our own rate limit would have held the request longer than its time limit."""
