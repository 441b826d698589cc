"""The client-side rate limit: ``--kubeconfig-qps`` and ``--kubeconfig-burst``."""

from __future__ import annotations

QPS_DEFAULT = 5.0
BURST_DEFAULT = 10


class RateLimit:
    """A token bucket, stored as the time at which the bucket is full again.

    Zero means the default of 5 per second with bursts of 10; negative means no limit.
    """

    def __init__(self, qps: float = 0.0, burst: int = 0) -> None:
        self.qps = qps or QPS_DEFAULT
        self.burst = max(1, burst or BURST_DEFAULT)
        self._full_at = float("-inf")

    def wait(self, now: float) -> float:
        """Returns the seconds until a token is free; takes none."""
        if self.qps < 0:
            return 0.0
        interval = 1 / self.qps
        return max(0.0, max(self._full_at, now) + interval - self.burst * interval - now)

    def reserve(self, now: float, seconds_max: float) -> float | None:
        """Takes a token and returns the seconds to wait; takes none if that exceeds ``seconds_max``."""
        if self.qps < 0:
            return 0.0
        wait = self.wait(now)
        if wait > seconds_max:
            return None
        self._full_at = max(self._full_at, now) + 1 / self.qps
        return wait

    def take(self, now: float) -> float:
        """Takes a token and returns 0, or the seconds until one is free."""
        return 0.0 if self.reserve(now, 0.0) is not None else self.wait(now)
