"""The record of one dial, from the caller's request to the end of its connection, and the last records.

The protocol core creates one record per dial, writes to it when something happens, and ends it exactly once:
when the dial has failed or was cancelled, or when the last byte of its connection is counted. Status and
audit trail read the same records, so they agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from bootbridge.wire.addresses import ADDRESS_CHARS_MAX

# Records in /status. Failures have their own, so that successes do not displace them.
RECENT_DIALS_MAX: Final = 100
RECENT_FAILURES_MAX: Final = 50
# Characters of a reason; a peer's error text may be a whole gRPC message.
REASON_CHARS_MAX: Final = 300

# Outcomes: how a dial was answered.
PENDING: Final = ""
ESTABLISHED: Final = "established"
NO_AGENT: Final = "no agent"
REFUSED: Final = "refused"
AGENT_LOST: Final = "agent lost"
TIMED_OUT: Final = "timed out"
CANCELLED: Final = "cancelled"

# Who closed a connection, or cancelled a dial. AGENT_LOST is one of them, too.
BY_CALLER: Final = "caller"
BY_ENDPOINT: Final = "endpoint"
BY_BOTH_ENDS: Final = "both ends"  # each has half-closed in order
BY_SERVER: Final = "server"


class DialRecord:
    """What happened to one dial. Times are of the core's clock, ``time`` is seconds since the epoch.

    In the agent, ``caller`` is the server's id, and agents and strategy are empty.
    """

    __slots__ = (
        "agent",
        "answered_at",
        "bytes_down",
        "bytes_up",
        "caller",
        "close_reason",
        "closed_at",
        "closed_by",
        "destination",
        "hop",
        "id",
        "outcome",
        "protocol",
        "reason",
        "started_at",
        "strategy",
        "time",
        "tried_agents",
    )

    def __init__(
        self, record_id: int, caller: str, protocol: str, destination: str, time: float, now: float
    ) -> None:
        self.id = record_id
        self.caller = caller
        self.protocol = protocol
        self.destination = destination[:ADDRESS_CHARS_MAX]
        self.time = time
        self.started_at = now
        self.answered_at = now
        self.closed_at = now
        self.strategy = ""
        self.agent = ""
        self.tried_agents: tuple[str, ...] = ()
        self.outcome: str = PENDING
        self.hop = ""
        self.reason = ""
        self.closed_by = ""
        self.close_reason = ""
        self.bytes_up = 0
        self.bytes_down = 0

    def __repr__(self) -> str:
        return f"<DialRecord {self.id} {self.destination} {self.outcome or 'pending'} {self.closed_by}>"

    @property
    def established(self) -> bool:
        return self.outcome == ESTABLISHED

    @property
    def connect_seconds(self) -> float:
        return self.answered_at - self.started_at

    @property
    def open_seconds(self) -> float:
        return self.closed_at - self.answered_at

    def try_agent(self, agent_id: str, strategy: str) -> None:
        self.agent = agent_id
        self.strategy = strategy
        self.tried_agents += (agent_id,)

    def try_directly(self, strategy: str) -> None:
        self.agent = ""
        self.strategy = strategy


class DialHistory:
    """Creates the records of one program, and keeps those that were answered last."""

    __slots__ = ("_wall_clock", "failures", "on_ended", "recent")

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self.recent: deque[DialRecord] = deque(maxlen=RECENT_DIALS_MAX)
        self.failures: deque[DialRecord] = deque(maxlen=RECENT_FAILURES_MAX)
        # Called once for each record, when nothing follows.
        self.on_ended: Callable[[DialRecord], None] = _nothing

    def start(self, record_id: int, caller: str, protocol: str, destination: str, now: float) -> DialRecord:
        return DialRecord(record_id, caller, protocol, destination, self._wall_clock(), now)

    def established(self, record: DialRecord, now: float) -> None:
        record.outcome = ESTABLISHED
        record.answered_at = record.closed_at = now
        self.recent.append(record)

    def failed(self, record: DialRecord, now: float, outcome: str, hop: str, reason: str) -> None:
        """The dial was refused or cancelled: the record ends."""
        record.outcome = outcome
        record.hop = hop
        record.reason = reason[:REASON_CHARS_MAX]
        record.answered_at = record.closed_at = now
        self.recent.append(record)
        self.failures.append(record)
        self.on_ended(record)

    def closed(self, record: DialRecord, now: float, by: str, reason: str) -> None:
        """The connection is closed for its caller; bytes may still follow, so the record goes on."""
        record.closed_at = now
        record.closed_by = by
        record.close_reason = reason[:REASON_CHARS_MAX]

    def ended(self, record: DialRecord, bytes_up: int, bytes_down: int) -> None:
        """Nothing more of this connection is sent or received: the record ends."""
        record.bytes_up = bytes_up
        record.bytes_down = bytes_down
        self.on_ended(record)


def _nothing(record: DialRecord) -> None:
    return None
