"""Which identifiers of an agent count."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from bootbridge.tunnel.agent_registry import AgentRegistry
from bootbridge.tunnel.allowed_identifiers import AllowedIdentifiers, admit, allowed_by_names
from bootbridge.tunnel.identifiers import IDENTIFIERS_MAX, AgentIdentifiers, parse_identifiers

NODE = allowed_by_names(
    ("Node1", "node1.example.com", "10.0.0.5", "fd00::5"),
    networks=(ip_network("10.128.2.0/23"), ip_network("fd01:0:0:2::/64")),
    default_route=True,
)


@pytest.mark.parametrize(
    "own",
    [
        "host=node1",
        "host=NODE1.example.com",
        "ipv4=10.0.0.5",
        "ipv6=FD00:0::5",
        "host=10.0.0.5",
        "ipv4=10.128.3.7",
        "cidr=10.128.2.0/23",
        "cidr=10.128.3.9/24",
        "cidr=10.0.0.5/32",
        "cidr=fd01:0:0:2::/64",
        "cidr=::ffff:10.128.2.0/119",
        "default-route=true",
    ],
)
def test_what_is_allowed_counts(own: str) -> None:
    """In every spelling, and networks inside an allowed one."""
    claimed = parse_identifiers(own)
    admitted = admit(claimed, (NODE,))
    assert admitted.identifiers == claimed
    assert admitted.ignored == ()


@pytest.mark.parametrize(
    "foreign",
    [
        "host=node2",
        "host=node1.",
        "host=sub.node1",
        "host=*",
        "ipv4=10.0.0.6",
        "ipv6=fd00::6",
        "host=10.0.0.6",
        "ipv6=::ffff:10.0.0.6",
        "cidr=10.128.2.0/22",
        "cidr=10.128.4.0/24",
        "cidr=10.0.0.5/31",
        "cidr=0.0.0.0/0",
        "cidr=::/0",
        "cidr=::/80",
        "cidr=fd01:0:0:2::/63",
    ],
)
def test_what_is_not_allowed_is_ignored(foreign: str) -> None:
    """The other identifiers of the same agent still count."""
    admitted = admit(parse_identifiers(f"{foreign}&host=node1"), (NODE,))
    assert admitted.identifiers == AgentIdentifiers(host=("node1",))
    assert admitted.ignored == (foreign,)


def test_the_default_route_must_be_allowed() -> None:
    """By every rule."""
    claimed = AgentIdentifiers(default_route=True)
    closed = AllowedIdentifiers()
    assert admit(claimed, ()).identifiers.default_route
    assert admit(claimed, (NODE, closed)).ignored == ("default-route=true",)
    assert not admit(claimed, (NODE, closed)).identifiers.default_route


def test_every_rule_must_allow_an_identifier() -> None:
    """An allow-list and a proof do not add up."""
    machines = AllowedIdentifiers((ip_network("10.0.0.0/16"),), (), True)
    admitted = admit(parse_identifiers("ipv4=10.0.0.5&cidr=10.128.2.0/23&host=node1"), (machines, NODE))
    assert admitted.identifiers == AgentIdentifiers(ipv4=("10.0.0.5",))
    assert admitted.ignored == ("host=node1", "cidr=10.128.2.0/23")


def test_wildcards_allow_names_and_no_addresses() -> None:
    """A name in front of the suffix is required."""
    suffix = allowed_by_names(("*.example.com",), default_route=False)
    assert suffix.allows_host("a.B.example.com")
    for host in ("example.com", "aexample.com", "a.example.com.evil", "10.0.0.1"):
        assert not suffix.allows_host(host)
    every = allowed_by_names(("*",), default_route=False)
    assert every.allows_host("anything")
    assert not every.allows_host("10.0.0.1")
    assert not every.allows_host("::1")


def test_number_and_length_of_identifiers_are_bounded() -> None:
    """The longest DNS name fits."""
    longest = "&".join(f"host={n:0253}" for n in range(IDENTIFIERS_MAX))
    assert len(parse_identifiers(longest).host) == IDENTIFIERS_MAX
    with pytest.raises(ValueError, match="more than 64"):
        parse_identifiers(f"{longest}&")
    with pytest.raises(ValueError, match="more than 272 characters"):
        parse_identifiers(f"host=a&cidr={'1' * 268}")


class _Agent:
    last_resort = False
    route_count = 0

    def __init__(self, agent_id: str, identifiers: str) -> None:
        self.agent_id = agent_id
        self.identifiers = parse_identifiers(identifiers)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("host=node1", "host=NODE1"),
        ("ipv6=fd00::5", "host=fd00:0::5"),
        ("cidr=10.0.0.0/8", "cidr=10.0.0.0/8"),
        ("cidr=10.0.0.0/8", "cidr=10.255.255.255/32"),
        ("cidr=::/0", "cidr=fd00::/64"),
        ("cidr=10.1.0.0/16&cidr=0.0.0.0/0", "cidr=192.168.0.0/24"),
    ],
)
def test_an_overlap_is_found_from_both_sides(one: str, other: str) -> None:
    """Whichever agent arrives first; never with itself, and no longer when the other is gone."""
    for first, second in ((one, other), (other, one)):
        registry: AgentRegistry[_Agent] = AgentRegistry()
        a, b, again = _Agent("a", first), _Agent("b", second), _Agent("a", first)
        registry.add(a)
        registry.add(again)
        assert list(registry.overlaps(again)) == []
        registry.add(b)
        assert [agent_id for _, agent_id in registry.overlaps(b)] == ["a"] * len(list(registry.overlaps(b)))
        assert list(registry.overlaps(a))
        assert list(registry.overlaps(b))
        registry.remove(b)
        assert list(registry.overlaps(a)) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("cidr=10.0.0.0/9", "cidr=10.128.0.0/9"),
        ("cidr=0.0.0.0/0", "cidr=::/0"),
        ("cidr=10.0.1.0/24&cidr=10.0.3.0/24", "cidr=10.0.2.0/24&cidr=10.0.0.0/24"),
        ("host=a", "host=b"),
        ("default-route=true", "default-route=true"),
    ],
)
def test_neighbours_do_not_overlap(one: str, other: str) -> None:
    """Adjacent networks, the other IP version; the default route is meant to be shared."""
    registry: AgentRegistry[_Agent] = AgentRegistry()
    agents = [_Agent("a", one), _Agent("b", other)]
    for agent in agents:
        registry.add(agent)
    assert [list(registry.overlaps(agent)) for agent in agents] == [[], []]
