"""Agent identifiers: parsing and comparison."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.tunnel.identifiers import (
    IDENTIFIER_CHARS_MAX,
    IDENTIFIERS_MAX,
    AgentIdentifiers,
    parse_identifiers,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("ipv4=1.2.3.4", AgentIdentifiers(ipv4=("1.2.3.4",)), id="1-ipv4"),
        pytest.param("ipv6=:::::", AgentIdentifiers(ipv6=(":::::",)), id="2-ipv6"),
        pytest.param("host=node1.mydomain.com", AgentIdentifiers(host=("node1.mydomain.com",)), id="3-host"),
        pytest.param("cidr=127.0.0.1/16", AgentIdentifiers(cidr=("127.0.0.1/16",)), id="4-cidr"),
        pytest.param(
            "host=localhost&host=node1.mydomain.com&cidr=127.0.0.1/16&ipv4=1.2.3.4&ipv4=5.6.7.8&ipv6=:::::&default-route=true",
            AgentIdentifiers(
                ipv4=("1.2.3.4", "5.6.7.8"),
                ipv6=(":::::",),
                host=("localhost", "node1.mydomain.com"),
                cidr=("127.0.0.1/16",),
                default_route=True,
            ),
            id="5-multiple",
        ),
        pytest.param("default-route=true", AgentIdentifiers(default_route=True), id="6-default-route-true"),
        pytest.param("default-route=false", AgentIdentifiers(), id="7-default-route-false"),
        pytest.param("default-route=yes", AgentIdentifiers(), id="8-default-route-invalid-is-false"),
        pytest.param(
            "default-route=true&default-route=false",
            AgentIdentifiers(default_route=True),
            id="9-default-route-first-wins",
        ),
        pytest.param("unknown=x&host=a", AgentIdentifiers(host=("a",)), id="10-unknown-key-ignored"),
        pytest.param("uid=agent-1&host=a", AgentIdentifiers(host=("a",)), id="12-uid-ignored"),
        pytest.param("", AgentIdentifiers(), id="empty"),
        pytest.param("&&host=a&", AgentIdentifiers(host=("a",)), id="empty-parts"),
        pytest.param("host", AgentIdentifiers(host=("",)), id="key-without-value"),
        pytest.param("host=a%26b%3D+c", AgentIdentifiers(host=("a&b= c",)), id="escapes"),
        pytest.param("host=%ff", AgentIdentifiers(host=("\ufffd",)), id="no-utf-8"),
    ],
)
def test_a_server_reads_what_an_agent_says(text: str, expected: AgentIdentifiers) -> None:
    """Each type, many values, default-route, and keys of other versions."""
    assert parse_identifiers(text) == expected


@pytest.mark.parametrize("value", ["1", "t", "T", "TRUE", "true", "True"])
def test_default_route_is_true_in_gos_spellings(value: str) -> None:
    """And in no other: ``tRUE`` is not one of them."""
    assert parse_identifiers(f"default-route={value}").default_route
    assert not parse_identifiers("default-route=tRUE").default_route


@pytest.mark.parametrize("text", ["host=a;ipv4=1.2.3.4", ";", "host=a&;&ipv4=b"])
def test_11_a_semicolon_is_an_error(text: str) -> None:
    """It was a separator once, so its meaning is unclear."""
    with pytest.raises(ValueError, match="invalid semicolon separator in query"):
        parse_identifiers(text)


@pytest.mark.parametrize(("text", "escape"), [("host=%zz", "%zz"), ("host=a%", "%"), ("%4=x", "%4")])
def test_a_broken_escape_is_an_error(text: str, escape: str) -> None:
    """The error shows it."""
    with pytest.raises(ValueError, match=f'invalid URL escape "{escape}"'):
        parse_identifiers(text)


def test_number_and_length_are_bounded() -> None:
    """Also of keys that a server skips, and of empty ones; at the bound they are accepted."""
    for one in ("host=a", "x=y", ""):
        parse_identifiers("&".join([one] * IDENTIFIERS_MAX))
        with pytest.raises(ValueError, match="more than 64"):
            parse_identifiers("&".join([one] * (IDENTIFIERS_MAX + 1)))
    longest = "host=".ljust(IDENTIFIER_CHARS_MAX, "x")
    assert parse_identifiers(longest).host == (longest[5:],)
    with pytest.raises(ValueError, match="one has more than 272 characters"):
        parse_identifiers(longest + "x")


def test_an_agent_refuses_keys_it_does_not_know() -> None:
    """A typo must not go unnoticed at start-up; the text is upstream's."""
    for key in ("hots", "uid"):
        with pytest.raises(ValueError) as caught:
            parse_identifiers(f"host=a&{key}=b", strict=True)
        assert str(caught.value) == f"agent address is invalid: unknown address type: {key}"


def test_an_agent_accepts_every_key_it_knows() -> None:
    """Strictness concerns unknown keys only."""
    text = "ipv4=a&ipv6=b&host=c&cidr=d&default-route=e"
    assert parse_identifiers(text, strict=True) == parse_identifiers(text)


def test_hosts_are_comparable_and_listed_once() -> None:
    """ipv4, ipv6 and host identifiers all name hosts."""
    identifiers = parse_identifiers("ipv4=10.0.0.1&ipv6=0:0::1&host=10.0.0.1&host=Node&host=node")
    assert identifiers.comparable_hosts == ("10.0.0.1", "::1", "node")


def test_an_invalid_cidr_is_kept_reported_and_unused() -> None:
    """One agent's mistake must not cost it its stream, let alone the server."""
    identifiers = parse_identifiers(
        "cidr=10.0.0.0/99&cidr=10.1.2.3/8&cidr=10.0.0.0/8&cidr=x&cidr=2001:db8::/32"
    )
    assert identifiers.cidr == ("10.0.0.0/99", "10.1.2.3/8", "10.0.0.0/8", "x", "2001:db8::/32")
    assert identifiers.networks == (ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"))
    assert identifiers.invalid_cidrs == ("10.0.0.0/99", "x")


@given(st.one_of(st.text(), st.text(alphabet="ipv46hostcdr=&;%+/.:019")))
def test_any_text_gives_identifiers_or_a_value_error(text: str) -> None:
    """The text comes from the network."""
    try:
        identifiers = parse_identifiers(text)
    except ValueError:
        return
    assert len(identifiers.networks) <= len(identifiers.cidr)
    assert all(isinstance(host, str) for host in identifiers.comparable_hosts)
