"""One sample of a server or agent, as values that every view uses.

Directions are the same for both programs: *up* is from the caller to the pod, *down* is from the pod to the
caller. All texts were made printable by the parser: they may come from a hostile peer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

SERVER, AGENT = "proxy-server", "proxy-agent"
NO_AGENT = "no agent connected"


@dataclass(frozen=True)
class PeerRow:
    """An agent, as the server sees it, or a server, as the agent sees it."""

    id: str
    address: str = ""
    node: str = ""
    state: str = ""
    healthy: bool = True
    connected_seconds: float | None = None
    connections: int = 0
    pending_dials: int = 0
    dials_succeeded: int = 0
    dials_failed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    queued_bytes: int = 0
    stalled_connections: int = 0
    credentials_seconds: float | None = None  # until they expire
    version: str = ""
    identifiers: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """Identifies the peer in the next sample; several agents may have the same ID."""
        return self.id, self.address


@dataclass(frozen=True)
class ConnectionRow:
    id: str
    destination: str = ""
    peer: str = ""  # the agent, or the server
    caller: str = ""
    protocol: str = ""
    strategy: str = ""
    age_seconds: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    queued_up: int = 0
    queued_down: int = 0
    state: str = ""
    waiting_for: str = ""

    @property
    def queued(self) -> int:
        return self.queued_up + self.queued_down

    @property
    def key(self) -> tuple[str, ...]:
        return self.id, self.peer, self.destination, self.caller


@dataclass(frozen=True)
class DialRow:
    age_seconds: float | None = None
    time: str = ""
    destination: str = ""
    caller: str = ""
    strategy: str = ""
    peer: str = ""
    tried: tuple[str, ...] = ()
    outcome: str = ""
    hop: str = ""
    reason: str = ""
    connect_seconds: float | None = None

    @property
    def succeeded(self) -> bool:
        return self.outcome == "established"

    @property
    def key(self) -> tuple[str, ...]:
        return self.time, self.destination, self.caller


@dataclass(frozen=True)
class CertificateRow:
    """The certificate of a port, and why newer files were not loaded."""

    title: str
    expires: datetime | None = None
    reload_error: str = ""


@dataclass(frozen=True)
class CounterRow:
    """One sample of `/metrics`, for programs without `/status`."""

    name: str
    labels: str = ""
    value: float = 0.0
    is_counter: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        return self.name, self.labels


Row = PeerRow | ConnectionRow | DialRow | CounterRow


@dataclass(frozen=True)
class RowRates:
    """Rates of one row; None while there is only one sample of it."""

    up: float | None = None
    down: float | None = None
    dials: float | None = None
    count: float | None = None

    @property
    def traffic(self) -> float:
        return (self.up or 0.0) + (self.down or 0.0)


@dataclass(frozen=True)
class Snapshot:
    """Everything of one sample. Totals are complete; the lists may have only the first rows."""

    taken: float  # seconds of a monotonic clock
    program: str
    version: str = ""
    identity: str = ""
    ready: bool = False
    stopping: bool = False
    uptime_seconds: float | None = None
    facts: tuple[str, ...] = ()  # mode, frontend, strategies
    frontend: str = ""  # of a server: path of its unix socket, or host:port
    agent_port: int = 0
    certificates: tuple[CertificateRow, ...] = ()
    pending_dials: int = 0
    dials_succeeded: int = 0
    dials_failed: Mapping[str, int] = field(default_factory=dict)  # by hop
    bytes_up: int | None = None
    bytes_down: int | None = None
    queued_bytes: int = 0
    peers_total: int = 0
    peers: tuple[PeerRow, ...] = ()
    connections_total: int = 0
    connections: tuple[ConnectionRow, ...] = ()
    recent_dials: tuple[DialRow, ...] = ()
    recent_failures: tuple[DialRow, ...] = ()
    counters: tuple[CounterRow, ...] = ()
    warnings: tuple[str, ...] = ()
    note: str = ""  # why details are missing
    document: Mapping[str, object] = field(default_factory=dict)  # as it was served, for --json

    @property
    def has_details(self) -> bool:
        """Whether it comes from `/status`; from `/metrics` there are only counters."""
        return not self.counters

    @property
    def dials_failed_total(self) -> int:
        return sum(self.dials_failed.values())

    @property
    def peer_name(self) -> str:
        """What the peers of this program are called."""
        return "agent" if self.program == SERVER else "server"
