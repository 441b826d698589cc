"""Backend selection for every strategy, with drain, load, retry and refusal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from ipaddress import ip_network
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.tunnel.agent_registry import AgentRegistry
from bootbridge.tunnel.backend_selection import (
    AgentBackend,
    DirectBackend,
    NoBackend,
    Strategy,
    parse_strategies,
    ready,
    select_backend,
)
from bootbridge.tunnel.identifiers import AgentIdentifiers, parse_identifiers

DESTINATION = "10.1.2.3:443"


@dataclass(eq=False)
class FakeStream:
    agent_id: str
    identifiers: AgentIdentifiers
    last_resort: bool = False
    route_count: int = 0


def stream(agent_id: str, identifiers: str = "", *, draining: bool = False, routes: int = 0) -> FakeStream:
    return FakeStream(agent_id, parse_identifiers(identifiers), draining, routes)


def select(
    strategies: str,
    *streams: FakeStream,
    address: str = DESTINATION,
    direct: str = "",
    exclude: tuple[FakeStream, ...] = (),
    rng: Random | None = None,
) -> FakeStream | DirectBackend | NoBackend:
    """Returns the chosen stream, DirectBackend, or the refusal."""
    registry: AgentRegistry[FakeStream] = AgentRegistry()
    for each in streams:
        registry.add(each)
    cidrs = [ip_network(cidr) for cidr in direct.split(",") if cidr]
    answer = select_backend(
        address, registry, parse_strategies(strategies), rng or Random(1), cidrs, frozenset(exclude)
    )
    return answer.stream if isinstance(answer, AgentBackend) else answer


def detail(answer: FakeStream | DirectBackend | NoBackend) -> str:
    assert isinstance(answer, NoBackend)
    assert answer.reason == "No agent available"
    return answer.detail


# --- strategies by name -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("default", (Strategy.DEFAULT,)),
        ("destHost", (Strategy.DEST_HOST,)),
        ("defaultRoute", (Strategy.DEFAULT_ROUTE,)),
        ("cidr,direct", (Strategy.CIDR, Strategy.DIRECT)),
        ("destHost,defaultRoute,default", (Strategy.DEST_HOST, Strategy.DEFAULT_ROUTE, Strategy.DEFAULT)),
        ("default,default", (Strategy.DEFAULT, Strategy.DEFAULT)),
        (",destHost,,default,", (Strategy.DEST_HOST, Strategy.DEFAULT)),
    ],
)
def test_strategies_are_read_in_order(text: str, expected: tuple[Strategy, ...]) -> None:
    """Duplicates are allowed and empty items skipped."""
    assert parse_strategies(text) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "proxy strategies cannot be empty"),
        (",", "proxy strategies cannot be empty"),
        ("default,nosuch", "unknown proxy strategy: nosuch"),
        ("DEFAULT", "unknown proxy strategy: DEFAULT"),
        ("default, cidr", "unknown proxy strategy:  cidr"),
    ],
)
def test_unknown_or_no_strategies_are_refused_with_upstreams_error(text: str, error: str) -> None:
    """Scripts compare these texts."""
    with pytest.raises(ValueError) as caught:
        parse_strategies(text)
    assert str(caught.value) == error


def test_a_strategy_prints_as_operators_write_it() -> None:
    """It is a metric label too."""
    assert [str(strategy) for strategy in Strategy] == [
        "default",
        "destHost",
        "defaultRoute",
        "cidr",
        "direct",
    ]


# --- default ------------------------------------------------------------------------------


def test_the_only_agent_takes_every_dial() -> None:
    """Also if it has more load."""
    a = stream("a", routes=1000)
    assert select("default", a) is a


def test_of_two_agents_the_less_loaded_one_takes_the_dial() -> None:
    """With two agents both are always compared."""
    busy, idle = stream("busy", routes=5), stream("idle", routes=4)
    for seed in range(20):
        assert select("default", busy, idle, rng=Random(seed)) is idle


def test_equally_loaded_agents_share_the_dials_evenly() -> None:
    """3,000 dials over 10 agents leave each near 300."""
    agents = [stream(str(number)) for number in range(10)]
    rng = Random(7)
    shares = Counter(
        answer.agent_id
        for _ in range(3000)
        if isinstance(answer := select("default", *agents, rng=rng), FakeStream)
    )
    assert sum(shares.values()) == 3000
    assert all(220 < shares[str(number)] < 380 for number in range(10))


def test_long_lived_connections_spread_almost_evenly() -> None:
    """Two choices keep the fullest of 50 agents within a few routes of the average."""
    agents = [stream(str(number)) for number in range(50)]
    rng = Random(3)
    for _ in range(1000):
        answer = select("default", *agents, rng=rng)
        assert isinstance(answer, FakeStream)
        answer.route_count += 1
    assert sum(agent.route_count for agent in agents) == 1000
    assert max(agent.route_count for agent in agents) <= 20 + 4


def test_the_busiest_agent_of_many_is_never_chosen() -> None:
    """Any other agent drawn with it is chosen."""
    agents = [stream("busy", routes=1), *(stream(str(number)) for number in range(5))]
    rng = Random(5)
    assert all(select("default", *agents, rng=rng) is not agents[0] for _ in range(200))


def test_the_oldest_stream_of_an_agent_id_is_used() -> None:
    """A later one is likely to be closed as a duplicate."""
    old, new = stream("a", routes=9), stream("a")
    assert select("default", old, new) is old


def test_a_younger_stream_of_the_same_id_is_used_when_the_oldest_drains() -> None:
    old, new = stream("a", draining=True), stream("a")
    assert select("default", old, new) is new


# --- defaultRoute -------------------------------------------------------------------------


def test_default_route_uses_only_agents_that_advertise_it() -> None:
    """However busy they are."""
    plain, routed = stream("plain"), stream("routed", "default-route=true", routes=99)
    assert select("defaultRoute", plain, routed) is routed
    assert "no agent advertises default-route=true" in detail(select("defaultRoute", plain))


def test_default_route_ignores_a_plain_stream_of_the_same_agent_id() -> None:
    """The stream that advertises it is the one used."""
    plain, routed = stream("a"), stream("a", "default-route=true")
    assert select("defaultRoute", plain, routed) is routed


# --- destHost -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identifiers", "address"),
    [
        ("ipv4=10.1.2.3", "10.1.2.3:443"),
        ("ipv4=10.1.2.3", "10.1.2.3"),
        ("ipv6=2001:db8::1", "[2001:db8::1]:443"),
        ("ipv6=2001:db8::1", "2001:db8::1"),
        ("ipv6=2001:DB8:0::1", "[2001:db8::1]:443"),
        ("host=node-1.example", "node-1.example:10250"),
    ],
)
def test_dest_host_finds_the_agent_of_that_host(identifiers: str, address: str) -> None:
    """By IPv4, IPv6 and name, with and without a port."""
    other, own = stream("other", "host=elsewhere"), stream("own", identifiers)
    assert select("destHost", other, own, address=address) is own


def test_dest_host_falls_back_to_the_next_strategy() -> None:
    """And only to a strategy that is listed."""
    a = stream("a", "host=elsewhere")
    assert select("destHost,default", a) is a
    assert "no agent advertises '10.1.2.3'" in detail(select("destHost", a))


def test_dest_host_takes_the_oldest_stream_that_does_not_drain() -> None:
    """Streams that advertise one host are one agent, reconnecting."""
    first = stream("a", "ipv4=10.1.2.3", draining=True)
    second, third = stream("b", "ipv4=10.1.2.3", routes=9), stream("c", "ipv4=10.1.2.3")
    assert select("destHost", first, second, third) is second


# --- cidr ---------------------------------------------------------------------------------


def test_cidr_finds_the_agent_whose_network_holds_the_destination() -> None:
    """The longest prefix wins, in both families."""
    wide, narrow = (
        stream("wide", "cidr=10.0.0.0/8&cidr=::/0"),
        stream("narrow", "cidr=10.1.0.0/16&cidr=2001:db8::/32"),
    )
    assert select("cidr", wide, narrow) is narrow
    assert select("cidr", wide, narrow, address="10.9.0.1:1") is wide
    assert select("cidr", wide, narrow, address="[2001:db8::9]:1") is narrow
    assert select("cidr", wide, narrow, address="[2001:db9::9]:1") is wide
    assert select("cidr", wide, narrow, address="[::ffff:10.1.0.1]:1") is narrow


def test_cidr_is_for_addresses_only() -> None:
    """A name is resolved by the agent, so its address is not known here."""
    everywhere = stream("a", "cidr=0.0.0.0/0&cidr=::/0")
    assert "'node.example' is not an IP address" in detail(
        select("cidr", everywhere, address="node.example:443")
    )
    assert select("cidr,default", everywhere, address="node.example:443") is everywhere


def test_cidr_shares_the_load_among_agents_of_one_network() -> None:
    busy, idle = stream("busy", "cidr=10.0.0.0/8", routes=3), stream("idle", "cidr=10.0.0.0/8")
    assert select("cidr", busy, idle) is idle


def test_cidr_goes_on_to_a_shorter_prefix_when_the_longest_drains() -> None:
    """A draining agent is used only if no other can take the dial."""
    wide, narrow = stream("wide", "cidr=10.0.0.0/8"), stream("narrow", "cidr=10.1.0.0/16", draining=True)
    assert select("cidr", wide, narrow) is wide
    assert select("cidr", narrow) is narrow


# --- direct -------------------------------------------------------------------------------


def test_direct_is_used_only_where_it_is_listed_and_the_destination_lies_inside() -> None:
    a = stream("a")
    assert select("direct,default", a, direct="10.0.0.0/8") == DirectBackend()
    assert select("default,direct", a, direct="10.0.0.0/8") is a
    assert select("default,direct", direct="10.0.0.0/8") == DirectBackend()
    assert select("direct,default", a, direct="192.0.2.0/24") is a
    assert isinstance(select("default", direct="10.0.0.0/8"), NoBackend)
    assert select("direct", address="[2001:db8::1]:1", direct="10.0.0.0/8,2001:db8::/32") == DirectBackend()


def test_direct_never_dials_a_name() -> None:
    """A name could resolve to any address that the server's host can reach."""
    answer = select("direct", address="localhost:443", direct="0.0.0.0/0,::/0")
    assert detail(answer) == "direct: 'localhost' is not an IP address"


def test_direct_comes_before_a_draining_agent() -> None:
    assert select("default,direct", stream("a", draining=True), direct="10.0.0.0/8") == DirectBackend()


# --- draining -----------------------------------------------------------------------------


def test_draining_agents_are_skipped() -> None:
    agents = [stream(str(number), draining=number != 13) for number in range(20)]
    for seed in range(20):
        assert select("default", *agents, rng=Random(seed)) is agents[13]


def test_a_draining_agent_serves_when_it_is_the_only_one() -> None:
    """For default, destHost and defaultRoute alike."""
    a = stream("a", "ipv4=10.1.2.3&default-route=true", draining=True)
    for strategy in ("default", "destHost", "defaultRoute"):
        assert select(strategy, a) is a


def test_an_agent_that_stays_is_preferred_across_strategies() -> None:
    """Promise 6 takes precedence over the order of the strategies."""
    leaving, staying = stream("leaving", "ipv4=10.1.2.3", draining=True), stream("staying")
    assert select("destHost,default", leaving, staying) is staying


def test_among_draining_agents_the_order_of_strategies_counts_again() -> None:
    """If all drain, destHost still finds its own."""
    own, other = stream("own", "ipv4=10.1.2.3", draining=True), stream("other", draining=True)
    for seed in range(10):
        assert select("destHost,default", own, other, rng=Random(seed)) is own


# --- retry --------------------------------------------------------------------------------


def test_an_excluded_stream_is_not_chosen_again() -> None:
    """A retry goes to another agent, a draining one included, or is refused."""
    tried, other = stream("tried", "ipv4=10.1.2.3&cidr=10.0.0.0/8"), stream("other", draining=True)
    assert select("destHost,cidr,default", tried, other, exclude=(tried,)) is other
    assert detail(select("default", tried, exclude=(tried,))) == (
        "default: every matching agent has already failed this dial"
    )


def test_excluding_one_stream_keeps_another_of_the_same_id() -> None:
    """Streams are compared by identity."""
    old, new = stream("a"), stream("a")
    assert select("default", old, new, exclude=(old,)) is new


# --- refusal ------------------------------------------------------------------------------


def test_a_refusal_lists_for_every_strategy_why_it_found_no_agent() -> None:
    """The caller gets upstream's text, the log gets the reasons."""
    a = stream("a", "host=elsewhere&cidr=192.0.2.0/24")
    answer = select("destHost,cidr,defaultRoute,direct,destHost", a, direct="192.0.2.0/24")
    assert detail(answer) == (
        "destHost: no agent advertises '10.1.2.3'; "
        "cidr: no agent advertises a CIDR with '10.1.2.3'; "
        "defaultRoute: no agent advertises default-route=true; "
        "direct: '10.1.2.3' is outside --direct-cidrs"
    )
    assert detail(select("default")) == "default: no agent is connected"


def test_a_hostile_address_is_escaped_and_shortened_in_the_refusal() -> None:
    text = detail(select("destHost", address="evil\n" + "x" * 100_000))
    assert "\n" not in text
    assert len(text) < 400


@given(st.text(), st.integers())
def test_any_address_gets_an_answer(address: str, seed: int) -> None:
    """With every strategy, and an agent for each of them."""
    a = stream("a", "host=h&cidr=0.0.0.0/0&default-route=true")
    assert select("destHost,cidr,direct,defaultRoute,default", a, address=address, rng=Random(seed)) is a


# --- readiness ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategies", "identifiers", "expected"),
    [
        ("default", None, False),
        ("default", "", True),
        ("destHost", "", False),
        ("destHost", "host=h", True),
        ("destHost,default", "", True),
        ("defaultRoute", "host=h", False),
        ("cidr", "cidr=10.0.0.0/8", True),
        ("cidr", "cidr=nonsense", False),
        ("direct", None, True),
        ("default,direct", None, False),
    ],
)
def test_readiness_considers_all_strategies(strategies: str, identifiers: str | None, expected: bool) -> None:
    """``destHost,default`` is ready with agents that advertise nothing."""
    registry: AgentRegistry[FakeStream] = AgentRegistry()
    if identifiers is not None:
        registry.add(stream("a", identifiers))
    assert ready(registry, parse_strategies(strategies)) is expected


def test_a_server_whose_only_agent_drains_is_still_ready() -> None:
    registry: AgentRegistry[FakeStream] = AgentRegistry()
    registry.add(stream("a", draining=True))
    assert ready(registry, parse_strategies("default"))
