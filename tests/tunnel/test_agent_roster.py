"""The roster of connected agent streams, acceptance §7.2 "backend managers" and "ready_backends"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.tunnel.agent_roster import Roster, Strategy
from bootbridge.tunnel.identifiers import AgentIdentifiers, parse_identifiers


@dataclass(eq=False)
class FakeStream:
    agent_id: str
    identifiers: AgentIdentifiers = field(default_factory=AgentIdentifiers)
    last_resort: bool = False
    route_count: int = 0


def stream(agent_id: str, identifiers: str = "") -> FakeStream:
    return FakeStream(agent_id, parse_identifiers(identifiers))


def roster_of(*streams: FakeStream) -> Roster[FakeStream]:
    roster: Roster[FakeStream] = Roster()
    for each in streams:
        roster.add(each)
    return roster


def holding(roster: Roster[FakeStream], ip: str) -> list[Sequence[FakeStream]]:
    return list(roster.networks.holding(ip_address(ip)))


def counts(roster: Roster[FakeStream]) -> dict[str, int]:
    return {str(strategy): roster.ready_count(strategy) for strategy in Strategy}


NOTHING = {"default": 0, "destHost": 0, "defaultRoute": 0, "cidr": 0, "direct": 0}


def test_streams_are_listed_in_order_of_arrival() -> None:
    """And are gone once removed."""
    a, b, c = stream("a"), stream("b"), stream("c")
    roster = roster_of(a, b, c)
    assert list(roster) == [a, b, c]
    assert roster.remove(b)
    assert list(roster) == [a, c]
    assert b not in roster
    assert len(roster) == 2


def test_adding_twice_or_removing_twice_changes_nothing() -> None:
    """A late second removal must not touch what came after it."""
    a = stream("a", "host=h")
    roster = roster_of(a, a)
    assert list(roster) == [a]
    assert roster.remove(a)
    assert not roster.remove(a)
    assert counts(roster) == NOTHING


def test_two_streams_of_one_agent_id_are_one_agent_and_two_streams() -> None:
    """B3: removing one leaves the other, whichever goes first."""
    old, new = stream("a", "host=h"), stream("a", "host=h")
    roster = roster_of(old, new)
    assert roster.streams_of("a") == [old, new]
    assert roster.ready_count(Strategy.DEFAULT) == 1
    roster.remove(old)
    assert roster.streams_of("a") == [new]
    assert roster.streams_for_host("h") == [new]
    roster.remove(new)
    assert roster.streams_of("a") == ()


def test_the_empty_agent_id_is_an_id_like_any_other() -> None:
    """Upstream's agents may send it."""
    a = stream("")
    assert roster_of(a).streams_of("") == [a]


@pytest.mark.parametrize("identifier", ["ipv4=10.0.0.1", "ipv6=2001:db8::1", "host=node-1"])
def test_a_host_is_found_by_ipv4_ipv6_and_name(identifier: str) -> None:
    """The three kinds of identifiers are one namespace."""
    a = stream("a", identifier)
    assert roster_of(a, stream("b")).streams_for_host(identifier.partition("=")[2]) == [a]


def test_a_host_is_found_in_any_spelling() -> None:
    """Two spellings of one IPv6 address, and names in any case."""
    a = stream("a", "ipv6=0:0::1&host=Node-1&ipv6=:::::")
    roster = roster_of(a)
    for host in ("::1", "0:0::1", "node-1", "Node-1", ":::::"):
        assert roster.streams_for_host(host) == [a]
    assert roster.streams_for_host("::2") == ()


def test_duplicate_identifiers_survive_the_removal_of_one() -> None:
    """Two agents may advertise the same host."""
    a, b = stream("a", "host=h&ipv4=1.1.1.1&host=h"), stream("b", "host=h")
    roster = roster_of(a, b)
    assert roster.streams_for_host("h") == [a, b]
    roster.remove(a)
    assert roster.streams_for_host("h") == [b]
    assert roster.streams_for_host("1.1.1.1") == ()


def test_networks_are_found_longest_prefix_first() -> None:
    """In both families, with the default network last."""
    wide, narrow, all4, six = (
        stream("wide", "cidr=10.0.0.0/8"),
        stream("narrow", "cidr=10.1.0.0/16&cidr=2001:db8:1::/48"),
        stream("all", "cidr=0.0.0.0/0"),
        stream("six", "cidr=2001:db8::/32&cidr=::/0"),
    )
    roster = roster_of(wide, all4, six, narrow)
    assert holding(roster, "10.1.2.3") == [[narrow], [wide], [all4]]
    assert holding(roster, "10.2.2.3") == [[wide], [all4]]
    assert holding(roster, "2001:db8:1::5") == [[narrow], [six], [six]]
    assert holding(roster, "2001:db9::5") == [[six]]


def test_what_an_agent_advertised_at_arrival_is_what_leaves_with_it() -> None:
    """Even if the stream object says something else by then."""
    a = stream("a", "host=h&cidr=10.0.0.0/8&default-route=true")
    roster = roster_of(a)
    a.agent_id, a.identifiers = "b", AgentIdentifiers()
    assert roster.remove(a)
    assert counts(roster) == NOTHING


def test_ready_backends_counts_what_each_strategy_can_find() -> None:
    """Agents for default and defaultRoute, identifiers for destHost, networks for cidr."""
    assert counts(roster_of()) == NOTHING
    roster = roster_of(
        stream("a", "host=h&ipv4=1.1.1.1&cidr=10.0.0.0/8&cidr=bad&default-route=true"),
        stream("a", "host=h&default-route=true"),
        stream("b", "host=h&cidr=10.0.0.0/8&cidr=::/0"),
    )
    assert counts(roster) == {"default": 2, "destHost": 2, "defaultRoute": 1, "cidr": 2, "direct": 0}


networks = st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.1.1.0/24", "0.0.0.0/0", "::/0", "2001:db8::/32"])


@given(
    st.lists(st.tuples(st.sets(networks), st.booleans()), max_size=12),
    st.sampled_from(["10.1.1.1", "2001:db8::1"]),
)
def test_the_network_index_agrees_with_looking_at_every_stream(
    agents: list[tuple[set[str], bool]], destination: str
) -> None:
    """Whatever came and went before; and an empty roster holds nothing."""
    roster: Roster[FakeStream] = Roster()
    staying: list[FakeStream] = []
    for number, (cidrs, stays) in enumerate(agents):
        one = stream(str(number), "&".join(f"cidr={cidr}" for cidr in sorted(cidrs)))
        roster.add(one)
        staying.append(one) if stays else roster.remove(one)
    ip = ip_address(destination)
    held = {cidr for one in staying for cidr in one.identifiers.cidr if ip in ip_network(cidr)}
    longest_first = sorted(held, key=lambda cidr: -ip_network(cidr).prefixlen)
    assert holding(roster, destination) == [
        [one for one in staying if cidr in one.identifiers.cidr] for cidr in longest_first
    ]
    for one in staying:
        roster.remove(one)
    assert counts(roster) == NOTHING
    assert roster.networks._by_length == {}
