"""The servers that an agent is connected to: one connection each, by server id, up to the wanted count.

The agent's sync loop calls ``attempts`` for the addresses to dial now, in parallel, reports the
results, and calls ``next_delay`` for the time until the next round. An address may be one server or a
load balancer in front of several; only the server id in the answer shows which. An address is
*covered* while the server that last answered there is connected.

While servers are missing, every uncovered address is dialled, and one of the covered addresses in
turn, since it may be a balancer. If the operator named several hosts and one of them is down, covered
addresses are not dialled: they are servers themselves, and the same server would answer again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from random import Random

Connection = TypeVar("Connection")

BACKOFF_FACTOR = 1.5
JITTER = 0.1

# Behind a random balancer, the last of N servers is found after N tries on average; 4 N tries
# miss it in 2 % of cases. With a twentieth of the sync interval between tries, five servers are
# found in about half a second instead of 12. The maximum is for servers that report a count of
# thousands. The budget is renewed only when all wanted servers are connected or more are wanted:
# a count that is too high, or a flapping server, costs one burst, then one dial per interval.
QUICK_RETRIES_PER_SERVER = 4
QUICK_RETRIES_MAX = 32
QUICK_RETRY_FRACTION = 0.05
# A lost server is usually one that restarts. A kubelet takes 10 to 20 s to replace a static pod; by then the
# backoff would have reached 5 to 10 s, and until an agent is back, every call of the kube-apiserver fails.
RESTART_RETRIES = 30


class Admission(Enum):
    """What to do with a new connection, now that its server id is known."""

    KEEP = auto()
    DUPLICATE = auto()  # this server is already connected: close the new connection
    DRAINING = auto()  # the agent is stopping: close it too


class SyncOutcome(Enum):
    """The result of a round of attempts; better results have higher values."""

    IDLE = 0  # nothing was tried
    FAILED = 1
    DUPLICATE = 2
    CONNECTED = 3


class CountSource(Enum):
    """Where the wanted number of servers comes from; the values are those of the flag."""

    DEFAULT = "default"  # leases if they are counted, else the count that servers report
    MAX = "max"  # the larger of both


def best_of(outcomes: Iterable[SyncOutcome]) -> SyncOutcome:
    """Returns the best outcome of a round, IDLE if nothing was tried."""
    return max(outcomes, key=lambda outcome: outcome.value, default=SyncOutcome.IDLE)


class SyncPace:
    """The delay between rounds: one interval after success or a lost server, longer after each failure."""

    __slots__ = ("_backoff", "_cap", "_interval", "_restart_retries", "_rng")

    def __init__(self, rng: Random, interval: float, cap: float) -> None:
        self._rng = rng
        self._interval = interval
        self._cap = cap
        self._backoff = interval
        self._restart_retries = 0

    def expect_restart(self) -> None:
        """A server was lost: the next failures do not lengthen the delay."""
        self._backoff = self._interval
        self._restart_retries = RESTART_RETRIES

    def after_failure(self) -> float:
        """Returns 1, 1.5, 2.25 … intervals up to the cap, plus jitter."""
        if self._restart_retries:
            self._restart_retries -= 1
            return self._jittered(self._interval)
        delay = min(self._backoff, self._cap)
        self._backoff = min(self._backoff * BACKOFF_FACTOR, self._cap)
        return self._jittered(delay)

    def steady(self) -> float:
        """Returns one interval, and resets the backoff."""
        self._backoff = self._interval
        return self._jittered(self._interval)

    def quick(self) -> float:
        """Returns a short random delay, so that agents do not retry in step."""
        self._backoff = self._interval
        return self._interval * QUICK_RETRY_FRACTION * self._rng.random()

    def _jittered(self, delay: float) -> float:
        return delay * (1 + JITTER * self._rng.random())


class ServerSet(Generic[Connection]):
    """Knows which servers are connected and wanted, and when to look for more."""

    def __init__(
        self,
        rng: Random,
        *,
        sync_interval: float = 1.0,
        sync_interval_cap: float = 10.0,
        sync_forever: bool = False,
        count_leases: bool = False,
        count_source: CountSource = CountSource.DEFAULT,
        hosts: int = 1,
    ) -> None:
        """``hosts``: how many hosts the operator named. Each is wanted, also if servers report fewer."""
        self._pace = SyncPace(rng, sync_interval, sync_interval_cap)
        self._sync_forever = sync_forever
        self._count_leases = count_leases
        self._count_source = count_source
        self._hosts = hosts
        self._responded_count = 1
        self._lease_count = 1
        self._by_server: dict[str, Connection] = {}
        self._server_of: dict[
            int, str
        ] = {}  # id(connection) -> server id; _by_server keeps the connection alive
        self._answered: dict[str, str] = {}  # address -> the server that last answered there
        self._turn = 0
        self._quick_retries = 0
        self.draining = False
        self._renew_quick_retries()

    def __len__(self) -> int:
        return len(self._by_server)

    def __repr__(self) -> str:
        return f"<ServerSet {len(self)}/{self.wanted} servers{' draining' if self.draining else ''}>"

    @property
    def server_ids(self) -> tuple[str, ...]:
        return tuple(self._by_server)

    @property
    def wanted(self) -> int:
        """The number of servers by leases or by their own reports, at least one."""
        if not self._count_leases:
            return self._responded_count
        if self._count_source is CountSource.MAX:
            return max(self._lease_count, self._responded_count)
        return self._lease_count

    # --- events ---

    def on_connected(
        self, server_id: str, connection: Connection, *, server_count: int = 1, address: str = ""
    ) -> Admission:
        """A server answered; its count is used only if it was not connected before."""
        if self.draining:
            return Admission.DRAINING
        if address:
            self._answered[address] = server_id
        if server_id in self._by_server:
            return Admission.DUPLICATE
        self._by_server[server_id] = connection
        self._server_of[id(connection)] = server_id
        before, self._responded_count = self.wanted, max(1, server_count)
        if self.wanted > before or len(self) >= self.wanted:
            self._renew_quick_retries()
        return Admission.KEEP

    def on_closed(self, connection: Connection) -> bool:
        """Removes this connection; False if it is not the present one of its server."""
        server_id = self._server_of.pop(id(connection), None)
        if server_id is None:
            return False
        del self._by_server[server_id]
        self._pace.expect_restart()
        return True

    def on_server_over(self) -> None:
        """A stopping server is gone; its replacement may answer at any moment."""
        self._pace.expect_restart()
        self._renew_quick_retries()

    def on_lease_count(self, count: int) -> bool:
        """Takes the number of valid leases; True if more servers are wanted, so that a sync is due."""
        before, self._lease_count = self.wanted, max(1, count)
        if self.wanted > before:
            self._renew_quick_retries()
        return self.wanted > max(before, len(self))

    def start_draining(self) -> None:
        self.draining = True

    # --- decisions ---

    def attempts(self, addresses: Sequence[str], in_flight: Collection[str] = ()) -> list[str]:
        """Returns the addresses to dial now, in parallel, without those in flight."""
        if self.draining:
            return []
        addresses = list(dict.fromkeys(addresses))
        self._answered = {a: s for a, s in self._answered.items() if a in addresses}
        uncovered = [address for address in addresses if not self.covers(address)]
        if self._satisfied(all_covered=not uncovered) and not self._sync_forever:
            return []
        attempts = [address for address in uncovered if address not in in_flight]
        if not uncovered or self._hosts == 1:
            covered = (address for address in addresses if address not in uncovered)
            attempts += self._one_in_turn([address for address in covered if address not in in_flight])
        return attempts

    def next_delay(self, outcome: SyncOutcome) -> float:
        """Returns the seconds until the next round."""
        if outcome is SyncOutcome.FAILED:
            return self._pace.after_failure()
        if outcome is not SyncOutcome.IDLE and self._quick_retries and len(self) < self.wanted:
            self._quick_retries -= 1
            return self._pace.quick()
        return self._pace.steady()

    def covers(self, address: str) -> bool:
        """Whether the server that last answered there is connected."""
        return self._answered.get(address) in self._by_server

    def holds(self, connection: Connection) -> bool:
        """Whether this is the present connection to its server."""
        return id(connection) in self._server_of

    def _satisfied(self, *, all_covered: bool) -> bool:
        return len(self) >= self.wanted and (all_covered or len(self) >= self._hosts)

    def _one_in_turn(self, addresses: list[str]) -> list[str]:
        if not addresses:
            return []
        turn, self._turn = self._turn, self._turn + 1
        return [addresses[turn % len(addresses)]]

    def _renew_quick_retries(self) -> None:
        self._quick_retries = min(QUICK_RETRIES_PER_SERVER * self.wanted, QUICK_RETRIES_MAX)
