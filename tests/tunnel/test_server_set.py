"""The servers an agent holds: counting, duplicates, pace, and which addresses to dial."""

from __future__ import annotations

from random import Random

import pytest

from bootbridge.tunnel.server_set import (
    RESTART_RETRIES,
    Admission,
    CountSource,
    ServerSet,
    SyncOutcome,
    best_of,
)

LB = "lb:8091"


class Connection:
    """A connection to a server; only its identity matters."""


class NoJitter(Random):
    def random(self) -> float:
        return 0.0


class FullJitter(Random):
    def random(self) -> float:
        return 1.0


def hold(servers: ServerSet[Connection], server_id: str, address: str = LB, count: int = 1) -> Connection:
    connection = Connection()
    assert servers.on_connected(server_id, connection, server_count=count, address=address) is Admission.KEEP
    return connection


def server_set(
    rng: Random | None = None,
    *,
    hosts: int = 1,
    sync_forever: bool = False,
    count_leases: bool = False,
    count_source: CountSource = CountSource.DEFAULT,
) -> ServerSet[Connection]:
    return ServerSet(
        rng or NoJitter(),
        hosts=hosts,
        sync_forever=sync_forever,
        count_leases=count_leases,
        count_source=count_source,
    )


# --- holding ------------------------------------------------------------------------------


def test_one_connection_per_server_is_kept() -> None:
    """A second one to the same server is a duplicate, and the first stays."""
    servers = server_set()
    first = hold(servers, "s1")
    assert servers.on_connected("s1", Connection()) is Admission.DUPLICATE
    hold(servers, "s2")
    assert servers.server_ids == ("s1", "s2")
    assert len(servers) == 2
    assert servers.on_closed(first)


def test_a_late_removal_of_the_old_connection_leaves_the_new_one() -> None:
    """Removal is by the connection, not by the server's id."""
    servers = server_set()
    old = hold(servers, "s1")
    assert servers.on_closed(old)
    new = hold(servers, "s1")
    assert not servers.on_closed(old)
    assert servers.on_closed(new)


def test_closing_a_duplicate_leaves_the_one_that_is_held() -> None:
    """A duplicate was never held."""
    servers = server_set()
    held, duplicate = hold(servers, "s1"), Connection()
    servers.on_connected("s1", duplicate)
    assert not servers.on_closed(duplicate)
    assert servers.on_closed(held)


def test_the_end_of_a_leaving_server_begins_the_search_anew() -> None:
    """Failed attempts before do not count: its replacement may answer at any moment."""
    servers = server_set()
    leaving = hold(servers, "s1")
    servers.on_closed(leaving)
    waits = [servers.next_delay(SyncOutcome.FAILED) for _ in range(RESTART_RETRIES + 10)]
    servers.on_server_over()
    assert servers.next_delay(SyncOutcome.FAILED) < waits[-1] / 2


def test_an_attempt_that_succeeds_while_draining_is_not_kept() -> None:
    """We are leaving; nothing new is to be announced to a server."""
    servers = server_set()
    servers.start_draining()
    assert servers.on_connected("s1", Connection()) is Admission.DRAINING
    assert len(servers) == 0


# --- counting -------------------------------------------------------------------------------


def test_one_server_is_wanted_before_anything_is_known() -> None:
    """Also if a server or the leases report fewer."""
    servers = server_set()
    assert servers.wanted == 1
    hold(servers, "s1", count=0)
    assert servers.wanted == 1
    leased = server_set(count_leases=True)
    assert leased.wanted == 1
    leased.on_lease_count(0)
    assert leased.wanted == 1


def test_the_count_of_the_last_newly_added_server_is_believed() -> None:
    """A duplicate's count is not: it may come from an old replica."""
    servers = server_set()
    hold(servers, "s1", count=3)
    assert servers.wanted == 3
    servers.on_connected("s1", Connection(), server_count=9)
    assert servers.wanted == 3
    hold(servers, "s2", count=2)
    assert servers.wanted == 2


@pytest.mark.parametrize(
    ("source", "leases", "response", "wanted"),
    [
        (CountSource.DEFAULT, 2, 5, 2),
        (CountSource.DEFAULT, 5, 2, 5),
        (CountSource.MAX, 2, 5, 5),
        (CountSource.MAX, 5, 2, 5),
        (CountSource.MAX, None, 5, 5),
        (CountSource.DEFAULT, None, 5, 1),
    ],
)
def test_leases_are_counted_where_that_is_on(
    source: CountSource, leases: int | None, response: int, wanted: int
) -> None:
    """``default`` takes the leases alone, ``max`` the larger of both."""
    servers = server_set(count_leases=True, count_source=source)
    hold(servers, "s1", count=response)
    if leases is not None:
        servers.on_lease_count(leases)
    assert servers.wanted == wanted


@pytest.mark.parametrize("source", CountSource)
def test_without_lease_counting_the_servers_own_answers_count(source: CountSource) -> None:
    """For either source."""
    servers = server_set(count_source=source)
    hold(servers, "s1", count=4)
    assert servers.wanted == 4


def test_more_leases_ask_for_a_sync_at_once_and_fewer_close_nothing() -> None:
    """The watch need not wait for the interval."""
    servers = server_set(count_leases=True)
    hold(servers, "s1")
    assert not servers.on_lease_count(1)
    assert servers.on_lease_count(3)
    hold(servers, "s2")
    assert not servers.on_lease_count(1)
    assert len(servers) == 2


# --- which addresses to dial ----------------------------------------------------------------


def test_one_address_is_dialled_until_the_count_is_reached() -> None:
    """Behind a balancer with three servers."""
    servers = server_set()
    for server_id in ("s1", "s2", "s3"):
        assert servers.attempts([LB]) == [LB]
        hold(servers, server_id, count=3)
    assert servers.attempts([LB]) == []


def test_a_lost_server_is_dialled_again() -> None:
    """One of three servers is lost and replaced."""
    servers = server_set()
    hold(servers, "s1", count=3)
    lost = hold(servers, "s2", count=3)
    hold(servers, "s3", count=3)
    servers.on_closed(lost)
    assert servers.attempts([LB]) == [LB]
    hold(servers, "s4", count=3)
    assert servers.attempts([LB]) == []


def test_sync_forever_dials_although_satisfied() -> None:
    """To notice new servers."""
    servers = server_set(sync_forever=True)
    hold(servers, "s1")
    assert servers.attempts([LB]) == [LB]


def test_a_draining_agent_dials_no_server() -> None:
    """Not even with sync-forever and nothing held."""
    servers = server_set(sync_forever=True)
    servers.start_draining()
    assert servers.attempts([LB]) == []


def test_all_addresses_of_a_name_are_tried_in_parallel_and_each_once() -> None:
    """The first round does not wait for one dead address."""
    servers = server_set()
    assert servers.attempts(["a", "b", "a", "c"]) == ["a", "b", "c"]
    assert servers.attempts(["a", "b", "c"], in_flight={"b"}) == ["a", "c"]


def test_a_slow_server_does_not_delay_other_attempts() -> None:
    """While one address is being dialled, the others are still tried."""
    servers = server_set(hosts=2)
    assert servers.attempts(["slow", "fine"], in_flight={"slow"}) == ["fine"]
    hold(servers, "s1", "fine")
    assert servers.attempts(["slow", "fine"], in_flight={"slow"}) == []


def test_addresses_without_a_live_connection_come_first() -> None:
    """Of several hosts only those not held are dialled."""
    servers = server_set(hosts=3)
    hold(servers, "s1", "a", count=3)
    lost = hold(servers, "s2", "b", count=3)
    assert servers.attempts(["a", "b", "c"]) == ["c"]
    servers.on_closed(lost)
    assert servers.attempts(["a", "b", "c"]) == ["b", "c"]


def test_every_host_that_the_operator_named_is_wanted() -> None:
    """Even if the servers, unaware of each other, say that there is one."""
    servers = server_set(hosts=2)
    hold(servers, "s1", "a", count=1)
    assert servers.attempts(["a", "b"]) == ["b"]
    hold(servers, "s2", "b", count=1)
    assert servers.attempts(["a", "b"]) == []


def test_two_hosts_of_one_server_are_not_dialled_forever() -> None:
    """The duplicate shows that the second host is covered too."""
    servers = server_set(hosts=2)
    held = hold(servers, "s1", "a")
    assert servers.on_connected("s1", Connection(), address="b") is Admission.DUPLICATE
    assert servers.attempts(["a", "b"]) == []
    servers.on_closed(held)
    assert servers.attempts(["a", "b"]) == ["a", "b"]


def test_a_dead_address_of_a_name_does_not_hide_a_balancer_behind_another() -> None:
    """One covered address is tried along with those that do not answer."""
    servers = server_set()
    hold(servers, "s1", "v4", count=2)
    assert servers.attempts(["v6", "v4"]) == ["v6", "v4"]


def test_covered_addresses_take_turns() -> None:
    """Any of them may be a balancer; one dial per round is enough to find out."""
    servers = server_set()
    hold(servers, "s1", "a", count=3)
    hold(servers, "s2", "b", count=3)
    assert [servers.attempts(["a", "b"]) for _ in range(4)] == [["a"], ["b"], ["a"], ["b"]]


def test_an_address_that_left_the_name_is_forgotten() -> None:
    """What answered there long ago says nothing when it returns."""
    servers = server_set(hosts=2)
    hold(servers, "s1", "a")
    servers.attempts(["b"])
    assert servers.attempts(["a", "b"]) == ["a", "b"]


# --- pace -----------------------------------------------------------------------------------


def test_failures_back_off_up_to_the_cap_and_success_starts_over() -> None:
    """1, 1.5, 2.25 … 10, 10 seconds with the defaults."""
    servers = server_set()
    delays = [servers.next_delay(SyncOutcome.FAILED) for _ in range(8)]
    assert delays == pytest.approx([1, 1.5, 2.25, 3.375, 5.0625, 7.59375, 10, 10])
    hold(servers, "s1")
    assert servers.next_delay(SyncOutcome.CONNECTED) == 1
    assert servers.next_delay(SyncOutcome.FAILED) == 1


def test_a_lost_server_is_dialled_every_interval_while_it_may_be_restarting() -> None:
    """Only then the delays grow: a server that stays away is not dialled every second for ever."""
    servers = server_set()
    lost = hold(servers, "s1")
    for _ in range(5):
        servers.next_delay(SyncOutcome.FAILED)
    assert servers.on_closed(lost)
    assert [servers.next_delay(SyncOutcome.FAILED) for _ in range(RESTART_RETRIES)] == [1] * RESTART_RETRIES
    assert [servers.next_delay(SyncOutcome.FAILED) for _ in range(3)] == pytest.approx([1, 1.5, 2.25])


@pytest.mark.parametrize("outcome", [SyncOutcome.FAILED, SyncOutcome.IDLE])
def test_every_delay_carries_up_to_a_tenth_of_jitter(outcome: SyncOutcome) -> None:
    """So that agents that lost their server together do not return in step."""
    assert server_set(FullJitter()).next_delay(outcome) == pytest.approx(1.1)


def test_nothing_to_do_and_success_wait_one_interval() -> None:
    """Steady state."""
    servers = server_set()
    hold(servers, "s1")
    assert [servers.next_delay(outcome) for outcome in (SyncOutcome.CONNECTED, SyncOutcome.IDLE)] == [1, 1]


def test_a_duplicate_is_retried_before_the_next_interval() -> None:
    """While servers are missing the next try comes within a twentieth of it."""
    servers = server_set(FullJitter())
    hold(servers, "s1", count=5)
    assert servers.next_delay(SyncOutcome.CONNECTED) == pytest.approx(0.05)
    assert servers.next_delay(SyncOutcome.DUPLICATE) == pytest.approx(0.05)


def test_quick_retries_are_bounded_when_the_count_is_wrong() -> None:
    """A missing fifth server costs one burst, then one dial per interval."""
    servers = server_set(FullJitter())
    hold(servers, "s1", count=5)
    delays = [servers.next_delay(SyncOutcome.DUPLICATE) for _ in range(100)]
    assert sum(delay < 0.1 for delay in delays) == 20
    assert delays[20:] == pytest.approx([1.1] * 80)


def test_quick_retries_are_bounded_for_any_claim_of_a_server() -> None:
    """Also with a server count of a billion."""
    servers = server_set(FullJitter())
    hold(servers, "s1", count=10**9)
    assert sum(servers.next_delay(SyncOutcome.DUPLICATE) < 0.1 for _ in range(1000)) == 32


def test_a_flapping_server_is_not_dialled_in_a_tight_loop() -> None:
    """Connecting and losing it again renews no quick retries."""
    servers = server_set(FullJitter())
    quick = 0
    for _ in range(200):
        connection = hold(servers, "s1", count=3)
        quick += servers.next_delay(SyncOutcome.CONNECTED) < 0.1
        servers.on_closed(connection)
    assert quick <= 12


def test_quick_retries_are_there_again_after_all_servers_were_held() -> None:
    """So a lost server is replaced as fast as the first one was found."""
    servers = server_set(FullJitter())
    hold(servers, "s1", count=2)
    while servers.next_delay(SyncOutcome.DUPLICATE) < 0.1:
        pass
    lost = hold(servers, "s2", count=2)
    servers.on_closed(lost)
    assert servers.next_delay(SyncOutcome.DUPLICATE) < 0.1


def test_a_duplicate_found_by_sync_forever_waits_the_interval() -> None:
    """No server is missing, so the delay is one interval."""
    servers = server_set(sync_forever=True)
    hold(servers, "s1")
    assert servers.next_delay(SyncOutcome.DUPLICATE) == 1


@pytest.mark.parametrize("seed", range(5))
def test_five_servers_behind_a_random_balancer_are_found_in_seconds(seed: int) -> None:
    """Upstream needs about twelve on average."""
    rng = Random(seed)
    servers: ServerSet[Connection] = ServerSet(rng)
    waited = 0.0
    while servers.attempts([LB]):
        admission = servers.on_connected(f"s{rng.randrange(5)}", Connection(), server_count=5, address=LB)
        waited += servers.next_delay(
            SyncOutcome.CONNECTED if admission is Admission.KEEP else SyncOutcome.DUPLICATE
        )
    assert len(servers) == 5
    assert waited - 1.1 < 2


def test_the_best_news_of_a_round_decides_the_pace() -> None:
    """One dead address does not slow down the others."""
    assert best_of([]) is SyncOutcome.IDLE
    assert best_of([SyncOutcome.FAILED, SyncOutcome.FAILED]) is SyncOutcome.FAILED
    assert best_of([SyncOutcome.FAILED, SyncOutcome.DUPLICATE]) is SyncOutcome.DUPLICATE
    assert (
        best_of([SyncOutcome.DUPLICATE, SyncOutcome.CONNECTED, SyncOutcome.FAILED]) is SyncOutcome.CONNECTED
    )
