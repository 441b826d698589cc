"""Addresses as text."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.wire.addresses import (
    comparable_host,
    host_of,
    join_host_port,
    parse_cidr,
    parse_ip,
    peer_address,
    split_host_port,
)


def test_the_address_of_a_peer_can_be_used_as_a_destination() -> None:
    assert peer_address("::ffff:192.0.2.1", 5) == peer_address("192.0.2.1", 5) == "192.0.2.1:5"
    assert peer_address("2001:db8::1", 5) == "[2001:db8::1]:5"
    assert peer_address("::ffff:0:102:304", 5) == "[::ffff:0:102:304]:5"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("localhost:8080", "localhost"),
        ("localhost", "localhost"),
        ("127.0.0.1:8080", "127.0.0.1"),
        ("::", "::"),
        ("2001:db8:85a3::8a2e:370:7334", "2001:db8:85a3::8a2e:370:7334"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        (" 127.0.0.1:8080", " 127.0.0.1"),
    ],
)
def test_only_the_port_is_removed_from_a_host(address: str, host: str) -> None:
    """As Konnectivity's RemovePortFromHost."""
    assert host_of(address) == host


def test_brackets_without_a_port_lose_only_the_brackets() -> None:
    """Cutting at the last colon would leave half an address."""
    assert host_of("[2001:db8::1]") == "2001:db8::1"


@given(st.text())
def test_the_host_of_any_text_is_found_without_an_error(address: str) -> None:
    """Frontends may send anything."""
    assert len(host_of(address)) <= len(address)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("10.0.0.1:443", "10.0.0.1", 443),
        ("node-1.example:1", "node-1.example", 1),
        ("[::1]:65535", "::1", 65535),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
        ("name:0443", "name", 443),
    ],
)
def test_an_address_to_dial_is_split(address: str, host: str, port: int) -> None:
    """IPv4, names, and IPv6 in brackets."""
    assert split_host_port(address) == (host, port)


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("localhost", "address localhost: missing port in address"),
        ("", "address : missing port in address"),
        ("[::1]", "address [::1]: missing port in address"),
        ("[::1]443", "address [::1]443: missing port in address"),
        ("::1", "address ::1: too many colons in address"),
        ("a:1:2", "address a:1:2: too many colons in address"),
        ("[::1]:1:2", "address [::1]:1:2: too many colons in address"),
        ("[::1:443", "address [::1:443: missing ']' in address"),
        ("a[b:443", "address a[b:443: unexpected '[' in address"),
        ("a]b:443", "address a]b:443: unexpected ']' in address"),
        (":443", "address :443: missing host in address"),
        ("[]:443", "address []:443: missing host in address"),
        ("a:", "address tcp/: unknown port"),
        ("a:https", "address tcp/https: unknown port"),
        ("a:-1", "address tcp/-1: unknown port"),
        ("a:٣", "address tcp/٣: unknown port"),
        ("a:0", "address 0: invalid port"),
        ("a:65536", "address 65536: invalid port"),
        ("a:" + "9" * 5000, f"address {'9' * 5000}: invalid port"),
    ],
)
def test_an_invalid_address_is_refused_with_the_error_of_go(address: str, error: str) -> None:
    """Go peers and their tests search for these texts."""
    with pytest.raises(ValueError) as caught:
        split_host_port(address)
    assert str(caught.value) == error


@given(
    st.one_of(st.ip_addresses().map(str), st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True)),
    st.integers(1, 65535),
)
def test_joining_and_splitting_are_inverse(host: str, port: int) -> None:
    """For names and addresses of both families."""
    assert split_host_port(join_host_port(host, port)) == (host, port)


@given(st.text())
def test_any_text_splits_or_is_refused(address: str) -> None:
    """ValueError is the only error."""
    try:
        host, port = split_host_port(address)
    except ValueError:
        return
    assert host
    assert 1 <= port <= 65535


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("::1", "0:0::1"),
        ("2001:DB8::A", "2001:db8:0:0::a"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("Node-1.Example", "node-1.example"),
        (":::::", ":::::"),
        ("010.0.0.1", "010.0.0.1"),
    ],
)
def test_spellings_of_one_host_compare_equal(one: str, other: str) -> None:
    """Invalid addresses are compared as text."""
    assert comparable_host(one) == comparable_host(other)


def test_different_hosts_stay_different() -> None:
    """None for text that is not an address."""
    assert comparable_host("010.0.0.1") != comparable_host("10.0.0.1")
    assert comparable_host("::1") != comparable_host("::2")


def test_an_ipv4_mapped_address_is_ipv4() -> None:
    """So that IPv4 CIDRs and identifiers hold it."""
    assert parse_ip("::ffff:10.0.0.1") == ip_address("10.0.0.1")


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("127.0.0.1/16", "127.0.0.0/16"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("10.0.0.1/32", "10.0.0.1/32"),
        ("2001:db8::1/64", "2001:db8::/64"),
        ("::/0", "::/0"),
        ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
        ("::ffff:10.1.2.3/64", "::/64"),
    ],
)
def test_a_cidr_is_read_with_its_host_bits_cleared(text: str, network: str) -> None:
    """Both families; an IPv4-mapped network is IPv4."""
    assert parse_cidr(text) == ip_network(network)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "10.0.0.0",
        "10.0.0.0/",
        "10.0.0.0/33",
        "::/129",
        "10.0.0.0/255.0.0.0",
        "x/8",
        "10.0.0.0/-1",
        "fe80::%e/64",
    ],
)
def test_an_invalid_cidr_is_none(text: str) -> None:
    """Netmasks and bare addresses are rejected, as in Go."""
    assert parse_cidr(text) is None


@given(st.text())
def test_any_text_is_a_cidr_or_none(text: str) -> None:
    parse_cidr(text)
    parse_cidr(text + "/8")
