"""The registry of connected agent streams and the number of agents ready for each strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.tunnel.agent_registry import AgentRegistry, Strategy
from bootbridge.tunnel.identifiers import AgentIdentifiers, parse_identifiers


@dataclass(eq=False)
class FakeStream:
    agent_id: str
    identifiers: AgentIdentifiers = field(default_factory=AgentIdentifiers)
    last_resort: bool = False
    route_count: int = 0


def stream(agent_id: str, identifiers: str = "") -> FakeStream:
    return FakeStream(agent_id, parse_identifiers(identifiers))


def registry_of(*streams: FakeStream) -> AgentRegistry[FakeStream]:
    registry: AgentRegistry[FakeStream] = AgentRegistry()
    for each in streams:
        registry.add(each)
    return registry


def holding(registry: AgentRegistry[FakeStream], ip: str) -> list[Sequence[FakeStream]]:
    return list(registry.networks.holding(ip_address(ip)))


def counts(registry: AgentRegistry[FakeStream]) -> dict[str, int]:
    return {str(strategy): registry.ready_count(strategy) for strategy in Strategy}


NOTHING = {"default": 0, "destHost": 0, "defaultRoute": 0, "cidr": 0, "direct": 0}


def test_streams_are_listed_in_order_of_arrival() -> None:
    a, b, c = stream("a"), stream("b"), stream("c")
    registry = registry_of(a, b, c)
    assert list(registry) == [a, b, c]
    assert registry.remove(b)
    assert list(registry) == [a, c]
    assert b not in registry
    assert len(registry) == 2


def test_adding_twice_or_removing_twice_changes_nothing() -> None:
    """A second removal must not affect streams that were added later."""
    a = stream("a", "host=h")
    registry = registry_of(a, a)
    assert list(registry) == [a]
    assert registry.remove(a)
    assert not registry.remove(a)
    assert counts(registry) == NOTHING


def test_two_streams_of_one_agent_id_are_one_agent_and_two_streams() -> None:
    """Removing one leaves the other, in both orders."""
    old, new = stream("a", "host=h"), stream("a", "host=h")
    registry = registry_of(old, new)
    assert registry.streams_of("a") == [old, new]
    assert registry.ready_count(Strategy.DEFAULT) == 1
    registry.remove(old)
    assert registry.streams_of("a") == [new]
    assert registry.streams_for_host("h") == [new]
    registry.remove(new)
    assert registry.streams_of("a") == ()


def test_the_empty_agent_id_is_an_id_like_any_other() -> None:
    """Upstream's agents may send it."""
    a = stream("")
    assert registry_of(a).streams_of("") == [a]


@pytest.mark.parametrize("identifier", ["ipv4=10.0.0.1", "ipv6=2001:db8::1", "host=node-1"])
def test_a_host_is_found_by_ipv4_ipv6_and_name(identifier: str) -> None:
    """The three kinds of identifiers are one namespace."""
    a = stream("a", identifier)
    assert registry_of(a, stream("b")).streams_for_host(identifier.partition("=")[2]) == [a]


def test_a_host_is_found_in_any_spelling() -> None:
    """Two spellings of one IPv6 address, and names in any case."""
    a = stream("a", "ipv6=0:0::1&host=Node-1&ipv6=:::::")
    registry = registry_of(a)
    for host in ("::1", "0:0::1", "node-1", "Node-1", ":::::"):
        assert registry.streams_for_host(host) == [a]
    assert registry.streams_for_host("::2") == ()


def test_duplicate_identifiers_survive_the_removal_of_one() -> None:
    """Two agents may advertise the same host."""
    a, b = stream("a", "host=h&ipv4=1.1.1.1&host=h"), stream("b", "host=h")
    registry = registry_of(a, b)
    assert registry.streams_for_host("h") == [a, b]
    registry.remove(a)
    assert registry.streams_for_host("h") == [b]
    assert registry.streams_for_host("1.1.1.1") == ()


def test_networks_are_found_longest_prefix_first() -> None:
    """In both families, with the default network last."""
    wide, narrow, all4, six = (
        stream("wide", "cidr=10.0.0.0/8"),
        stream("narrow", "cidr=10.1.0.0/16&cidr=2001:db8:1::/48"),
        stream("all", "cidr=0.0.0.0/0"),
        stream("six", "cidr=2001:db8::/32&cidr=::/0"),
    )
    registry = registry_of(wide, all4, six, narrow)
    assert holding(registry, "10.1.2.3") == [[narrow], [wide], [all4]]
    assert holding(registry, "10.2.2.3") == [[wide], [all4]]
    assert holding(registry, "2001:db8:1::5") == [[narrow], [six], [six]]
    assert holding(registry, "2001:db9::5") == [[six]]


def test_removal_uses_the_identifiers_of_the_time_of_adding() -> None:
    """The stream object may have changed since."""
    a = stream("a", "host=h&cidr=10.0.0.0/8&default-route=true")
    registry = registry_of(a)
    a.agent_id, a.identifiers = "b", AgentIdentifiers()
    assert registry.remove(a)
    assert counts(registry) == NOTHING


def test_ready_backends_counts_what_each_strategy_can_find() -> None:
    """Agents for default and defaultRoute, identifiers for destHost, networks for cidr."""
    assert counts(registry_of()) == NOTHING
    registry = registry_of(
        stream("a", "host=h&ipv4=1.1.1.1&cidr=10.0.0.0/8&cidr=bad&default-route=true"),
        stream("a", "host=h&default-route=true"),
        stream("b", "host=h&cidr=10.0.0.0/8&cidr=::/0"),
    )
    assert counts(registry) == {"default": 2, "destHost": 2, "defaultRoute": 1, "cidr": 2, "direct": 0}


networks = st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.1.1.0/24", "0.0.0.0/0", "::/0", "2001:db8::/32"])


@given(
    st.lists(st.tuples(st.sets(networks), st.booleans()), max_size=12),
    st.sampled_from(["10.1.1.1", "2001:db8::1"]),
)
def test_the_network_index_agrees_with_a_linear_search(
    agents: list[tuple[set[str], bool]], destination: str
) -> None:
    """After any sequence of additions and removals; an empty registry has empty indexes."""
    registry: AgentRegistry[FakeStream] = AgentRegistry()
    staying: list[FakeStream] = []
    for number, (cidrs, stays) in enumerate(agents):
        one = stream(str(number), "&".join(f"cidr={cidr}" for cidr in sorted(cidrs)))
        registry.add(one)
        staying.append(one) if stays else registry.remove(one)
    ip = ip_address(destination)
    held = {cidr for one in staying for cidr in one.identifiers.cidr if ip in ip_network(cidr)}
    longest_first = sorted(held, key=lambda cidr: -ip_network(cidr).prefixlen)
    assert holding(registry, destination) == [
        [one for one in staying if cidr in one.identifiers.cidr] for cidr in longest_first
    ]
    for one in staying:
        registry.remove(one)
    assert counts(registry) == NOTHING
    assert registry.networks._by_length == {}
