"""One exchange: the bytes that a caller and an endpoint send each other, and what each has received.

Every direction of every exchange has different bytes. The receiver therefore detects a byte that is missing,
duplicated, out of order or from another exchange.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tests.support.sim_environment import Environment, Violation
from tests.support.sim_network import SimPort

if TYPE_CHECKING:
    from tests.sim.callers import Caller

_PERIOD = 65521
_BASE = Random(20240).randbytes(_PERIOD)
_BYTES = _BASE + _BASE[: 64 * 1024]


def payload(key: int, start: int, size: int) -> bytes:
    """Bytes ``start`` .. ``start + size`` of the endless byte sequence of ``key``."""
    at = (key * 7919 + start) % _PERIOD
    return _BYTES[at : at + size]


@dataclass(slots=True)
class Plan:
    """The behaviour of both ends of an exchange. Sizes in bytes, times in seconds after its start."""

    kind: str  # of the endpoint: request, echo, source, sink, quitter, resetter, refuse, timeout, silent
    dialect: str  # connect or grpc
    up: int = 0
    down: int = 0
    early: bool = False
    banner: int = 0
    parting: str = "wait"  # what the endpoint does when it has sent everything: wait, finish or close
    half_close: bool = False  # the caller half-closes after its upload
    hasty: bool = False  # the caller closes right after its upload, without reading
    give_up_after: float | None = None
    give_up_how: str = "close"
    caller_stall: tuple[float, float] | None = None
    endpoint_stall: tuple[float, float] | None = None
    pause: float = 0.0  # between two writes of the caller
    endpoint_pause: float = 0.0
    direct: bool = False
    tls: bool = False  # the caller's connection has no half-close

    @property
    def supports_half_close(self) -> bool:
        """Whether the download can end before the upload."""
        return self.dialect == "connect" and not self.tls


@dataclass(slots=True, eq=False)
class Exchange:
    id: int
    plan: Plan
    started_at: float
    caller: Caller | None = None
    port: SimPort | None = None  # the caller's end of its connection, which gRPC callers may share
    endpoints: list[EndpointApp] = field(default_factory=list)
    dialled: int = 0  # how often an agent was asked to dial for it
    excuses: set[str] = field(default_factory=set)

    @property
    def address(self) -> str:
        prefix = "192.0" if self.plan.direct else "10.0"
        return f"{prefix}.{self.id >> 8}.{self.id & 255}:80"

    @property
    def up_key(self) -> int:
        return 2 * self.id

    @property
    def down_key(self) -> int:
        return 2 * self.id + 1

    @property
    def endpoint(self) -> EndpointApp | None:
        return self.endpoints[-1] if self.endpoints else None

    def __repr__(self) -> str:
        return f"<Exchange {self.id} {self.plan.dialect} {self.plan.kind} {self.caller} {self.endpoint}>"

    # --- reports of the two ends

    def check_up(self, at: int, data: memoryview) -> None:
        if data != payload(self.up_key, at, len(data)) and "adversary" not in self.excuses:
            raise Violation(1, f"{self} got wrong upload bytes at {at}")

    def check_down(self, at: int, data: memoryview) -> None:
        if data != payload(self.down_key, at, len(data)) and "adversary" not in self.excuses:
            raise Violation(1, f"{self} got wrong download bytes at {at}")

    def caller_saw_end(self) -> None:
        """The caller saw an orderly end of the download."""
        caller = self.caller
        assert caller is not None
        if self.excuses & {"adversary", "server crashed"}:
            return
        if caller.ended and any(not endpoint.half_close_supported for endpoint in self.endpoints):
            return  # without half-close the agent closes the whole connection
        ended = [endpoint for endpoint in self.endpoints if endpoint.ended]
        if not ended:
            raise Violation(1, f"{self}: an orderly end for the caller, but the endpoint has not ended")
        if all(endpoint.sent != caller.received for endpoint in ended):
            raise Violation(1, f"{self}: an orderly end, but bytes are missing")

    def endpoint_saw_end(self, endpoint: EndpointApp) -> None:
        """The endpoint saw an orderly end of the upload."""
        caller = self.caller
        if self.excuses & {"adversary", "server crashed", "agent crashed", "caller broke"}:
            return
        if self.excuses & {"stalled", "slow network"} and not endpoint.half_close_supported:
            return  # a stalled caller is closed, and a Go agent cannot distinguish that from an orderly end
        assert caller is not None
        if caller.answer != "ok":
            return  # it left before the answer, so it does not know which bytes were delivered
        if not endpoint.received and len(self.endpoints) > 1:
            return  # this connection was never used
        if endpoint.ended and (not self.plan.supports_half_close or not endpoint.half_close_supported):
            return  # without half-close the endpoint's end closes both directions
        if self.port is not None and self.port.peer.unread_lost:
            return  # it left with unread bytes, which is a reset that discards bytes in flight
        if caller.sent != endpoint.received:
            missing = caller.sent - endpoint.received
            raise Violation(1, f"{self}: an orderly end for the endpoint, but {missing} bytes are missing")
        if not caller.ended and not caller.over:
            raise Violation(1, f"{self}: an orderly end for the endpoint, but the caller has not ended")


class EndpointApp:
    """A pod's side of one exchange; a ``ByteHandler`` on the far end of the agent's socket."""

    def __init__(
        self, env: Environment, exchange: Exchange, port: SimPort, *, half_close_supported: bool
    ) -> None:
        self._env = env
        self._port = port
        self._plan = exchange.plan
        self.exchange = exchange
        self.half_close_supported = half_close_supported
        self.received = 0
        self.sent = 0
        self.ended = False  # it has ended the download, in order
        self.saw_end = False
        self.over = False
        self._waiting = False
        plan = self._plan
        exchange.endpoints.append(self)
        self._owed = plan.banner + (plan.down if plan.kind == "source" else 0)
        if plan.endpoint_stall is not None:
            begin, duration = plan.endpoint_stall
            port.pump.soon(begin, lambda: self._stall(duration))
        if plan.kind == "resetter":
            port.pump.soon(env.between(0, 0.2), self._abort)

    def __repr__(self) -> str:
        state = "over" if self.over else "ended" if self.ended else "open"
        return f"<EndpointApp {state} got {self.received} sent {self.sent} owes {self._owed}>"

    def begin(self) -> None:
        self._port.start(self)
        self._send_download()

    def _stall(self, duration: float) -> None:
        if not self.over:
            self.exchange.excuses.add("stalled")
            self._port.pause_reading()
            self._port.pump.soon(duration, self._port.resume_reading)

    def _abort(self) -> None:
        if not self.over:
            self.over = True
            self._port.abort()

    # --- ByteHandler

    def on_bytes(self, data: memoryview) -> None:
        plan = self._plan
        before = self.received
        self.exchange.check_up(before, data)
        self.received = now = before + len(data)
        caller = self.exchange.caller
        if caller is not None and now > caller.sent and "adversary" not in self.exchange.excuses:
            raise Violation(1, f"{self.exchange}: the endpoint got more than was sent")
        if plan.kind == "echo":
            self._owed += len(data)
        elif plan.kind == "request" and before < plan.up <= now:
            self._owed += plan.down
        elif plan.kind == "quitter" and now >= plan.up // 2:
            self._quit()
            return
        self._send_download()

    def on_drained(self) -> None:
        self._send_download()

    def on_eof(self, gone: bool) -> None:
        self.saw_end = True
        self.exchange.endpoint_saw_end(self)
        self._send_download()

    def on_lost(self, reason: str) -> None:
        self.over = True

    # --- sending

    def _send_download(self) -> None:
        port = self._port
        pause = self._plan.endpoint_pause
        while self._owed and port.backlog < 2048 and not self.over and not self._waiting:
            size = min(self._owed, self._env.count(1, 3000))
            port.write(payload(self.exchange.down_key, self.sent, size))
            self.sent += size
            self._owed -= size
            if pause:
                self._waiting = True
                port.pump.soon(pause * self._env.random(), self._continue_sending)
        if not self._owed and not self.over and not port.backlog:
            self._end_download_if_done()

    def _continue_sending(self) -> None:
        self._waiting = False
        self._send_download()

    def _end_download_if_done(self) -> None:
        plan = self._plan
        if self.saw_end:
            self._quit()
        elif self.ended or plan.parting == "wait" or plan.kind in ("echo", "sink", "quitter", "resetter"):
            return
        elif plan.kind == "source" or self.received >= plan.up:
            if plan.parting == "close":
                self._quit()
            else:
                self.ended = True
                self._port.finish()

    def _quit(self) -> None:
        self.ended = self.over = True
        self._port.close()
