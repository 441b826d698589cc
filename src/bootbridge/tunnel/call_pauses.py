"""The end of an agent's drain: connections are closed between two calls, so that no call is cut.

A kube-apiserver keeps its connection to a webhook and uses it for call after call. So it is still open when
the time of a drain is up, and a call that is in flight then fails. If it is closed in the pause before, no
call fails: the kube-apiserver dials again, and another agent serves it.

What the bytes mean is not known here. A connection is taken to pause when its endpoint was the last to send,
all of that is on its way, and nothing has followed for ``PAUSE_SECONDS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bootbridge.ports.close_states import State

if TYPE_CHECKING:
    from bootbridge.tunnel.agent_core import AgentCore
    from bootbridge.tunnel.endpoint import Endpoint

# Shorter than most pauses between two calls, longer than most between two parts of an answer.
PAUSE_SECONDS: Final = 0.03


class CallPauses:
    """Watches the connections of a draining agent, and closes those that pause."""

    def __init__(self, core: AgentCore) -> None:
        self._core = core
        self._watched: dict[Endpoint, _Exchange] = {}

    def watch(self) -> None:
        """Watches the connections that are open now."""
        now = self._core.timers.now
        self._watched = {
            endpoint: self._watched.get(endpoint) or _Exchange(endpoint, now)
            for stream in self._core.streams
            for endpoint in stream.endpoints.values()
            if endpoint.state is not State.CLOSING
        }

    def close(self) -> None:
        """Closes the connections that pause."""
        self.watch()
        for endpoint, exchange in self._watched.items():
            if exchange.paused:
                endpoint.close_for_drain()


class _Exchange:
    """Notes when an endpoint sends, and what it had been sent by then."""

    __slots__ = ("_answered_at", "_endpoint", "_now", "_received", "_send")

    def __init__(self, endpoint: Endpoint, now: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._now = now
        self._received: int | None = None  # it has not sent anything since it is watched
        self._answered_at = 0.0
        self._send = endpoint.on_bytes
        endpoint.on_bytes = self._on_bytes

    def _on_bytes(self, data: memoryview) -> None:
        self._received = self._endpoint.bytes_up
        self._answered_at = self._now()
        self._send(data)

    @property
    def paused(self) -> bool:
        endpoint = self._endpoint
        return (
            self._received == endpoint.bytes_up
            and not endpoint.queued_down
            and self._now() - self._answered_at >= PAUSE_SECONDS
        )
