"""How an API call fails: with an error status, or without a usable response."""

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

    @property
    def is_not_found(self) -> bool:
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """The object exists already, or it was changed since it was read."""
        return self.status == 409

    @property
    def is_invalid(self) -> bool:
        """The API server never accepts this request."""
        return self.status == 422


class KubeUnreachable(BootbridgeError):
    """No usable response: connection refused, timed out, cut off, or not HTTP with JSON."""


class KubeThrottled(KubeUnreachable):
    """Our own rate limit would have delayed the request beyond its timeout."""
