"""Pending dials of the server: one that an agent makes, and one that the server makes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bootbridge.ports.byte_ports import ByteHandler, BytePort, PendingDial
from bootbridge.ports.timers import Timer
from bootbridge.tunnel.backend_selection import NO_AGENT
from bootbridge.tunnel.dial_record import DialRecord
from bootbridge.tunnel.frontend import DialFailure, DialFailureCause, Frontend
from bootbridge.tunnel.route import DirectRoute
from bootbridge.wire import packets as p

if TYPE_CHECKING:
    from bootbridge.tunnel.agent_stream import AgentStream
    from bootbridge.tunnel.proxy_core import ProxyCore

DIAL_TIMEOUT_TEXT: Final = "timed out waiting for backend dial"
SERVER_TO_ENDPOINT: Final = "server to endpoint"


class Dial:
    """A pending dial, with one agent at a time. It is answered exactly once."""

    __slots__ = (
        "_core",
        "address",
        "agent",
        "front",
        "id",
        "lost",
        "protocol",
        "record",
        "started_at",
        "timer",
    )

    def __init__(
        self, core: ProxyCore, front: Frontend, protocol: str, address: str, record: DialRecord
    ) -> None:
        self._core = core
        self.front = front
        self.protocol = protocol
        self.address = address
        self.record = record
        self.id = record.id
        self.started_at = record.started_at
        self.agent: AgentStream | None = None
        self.lost: list[AgentStream] = []
        self.timer: Timer = core.timers.after(core.limits.dial_seconds, self._too_late)

    def __repr__(self) -> str:
        return f"<Dial {self.address} with {self.agent}>"

    def cancel(self) -> None:
        """The frontend cancels it."""
        self._withdraw()
        self._core.count_cancelled(self.record)

    def _too_late(self) -> None:
        self._withdraw()
        if self.agent is None:
            self._core.refuse(self, DialFailure(DialFailureCause.NO_AGENT, NO_AGENT))
        else:
            self.agent.suspect()
            self._core.refuse(self, DialFailure(DialFailureCause.TIMEOUT, DIAL_TIMEOUT_TEXT))

    def _withdraw(self) -> None:
        self.timer.cancel()
        self._core.early_dials.pop(self, None)
        if self.agent is not None:
            self.agent.dials.pop(self.id, None)
            self.agent.send(p.CloseDial(self.id))


class DirectDial:
    """A dial by the server itself."""

    def __init__(self, core: ProxyCore, front: Frontend, address: str, record: DialRecord) -> None:
        self._core = core
        self._front = front
        self.address = address
        self.record = record
        self.started_at = core.timers.now()
        self.pending: PendingDial | None = None

    def __repr__(self) -> str:
        return f"<DirectDial {self.address}>"

    def cancel(self) -> None:
        self._core.direct_dials.discard(self)
        if self.pending is not None:
            self.pending.cancel()
        self._core.count_cancelled(self.record)

    def on_dialled(self, port: BytePort) -> ByteHandler:
        core = self._core
        core.direct_dials.discard(self)
        now = core.timers.now()
        core.metrics.dial_duration_seconds.observe(now - self.started_at)
        core.dial_history.established(self.record, now)
        route = DirectRoute(core, self._front, port, self.record)
        core.direct_routes.add(route)
        self._front.established(route, 1)
        return route

    def on_dial_failed(self, error: str, timed_out: bool) -> None:
        core = self._core
        core.direct_dials.discard(self)
        core.event_log.warning("dial refused", address=self.address, hop=SERVER_TO_ENDPOINT, reason=error)
        failure = DialFailure(DialFailureCause.ENDPOINT, error)
        core.count_failed(self.record, failure, SERVER_TO_ENDPOINT, error)
        self._front.refused(failure)
