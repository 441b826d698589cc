"""Which addresses may be dialled, and which rule refuses the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.errors import OperatorError
from bootbridge.runtime.destination_policy import DEFAULT_REFUSALS, NOT_LISTED, DestinationPolicy

PRIVATE = ("10.0.0.0/8", "fd00::/8")


@pytest.mark.parametrize(
    ("host", "rule"),
    [
        ("0.0.0.0", "unspecified 0.0.0.0/8"),
        ("127.255.255.255", "loopback 127.0.0.0/8"),
        ("169.254.169.254", "link-local 169.254.0.0/16"),
        ("169.254.170.2", "link-local 169.254.0.0/16"),
        ("168.63.129.16", "metadata 168.63.129.16/32"),
        ("100.100.100.200", "metadata 100.100.100.200/32"),
        ("192.0.0.192", "metadata 192.0.0.192/32"),
        ("239.1.2.3", "multicast 224.0.0.0/4"),
        ("255.255.255.255", "broadcast 255.255.255.255/32"),
        ("::", "unspecified ::/128"),
        ("::1", "loopback ::1/128"),
        ("fe80::1", "link-local fe80::/10"),
        ("fe80::1%eth0", "link-local fe80::/10"),
        ("ff02::1", "multicast ff00::/8"),
        ("fd00:ec2::254", "metadata fd00:ec2::/32"),
        ("fd20:ce::254", "metadata fd20:ce::254/128"),
        ("::ffff:127.0.0.1", "loopback 127.0.0.0/8"),
        ("::127.0.0.1", "loopback 127.0.0.0/8"),
        ("::ffff:0:127.0.0.1", "loopback 127.0.0.0/8"),
        ("64:ff9b::169.254.169.254", "link-local 169.254.0.0/16"),
        ("64:ff9b:1::169.254.169.254", "link-local 169.254.0.0/16"),
        ("64:ff9b:1:2::169.254.169.254", "link-local 169.254.0.0/16"),
        ("64:ff9b:1:a9fe:a9:fe00::", "link-local 169.254.0.0/16"),
        ("64:ff9b:1:2a9:fe:a9fe::", "link-local 169.254.0.0/16"),
        ("64:ff9b:1:2:a9:fea9:fe00:0", "link-local 169.254.0.0/16"),
        ("64:ff9b:1::", "unspecified 0.0.0.0/8"),
        ("2002:7f00:1::", "loopback 127.0.0.0/8"),
        ("2001:0:7f00:1::", "loopback 127.0.0.0/8"),
        ("2001:0:102:304:0:0:80ff:fffe", "loopback 127.0.0.0/8"),
    ],
)
def test_these_are_refused_by_default(host: str, rule: str) -> None:
    """Also where a list permits every address."""
    for allow in ((), ("0.0.0.0/0", "::/0")):
        assert DestinationPolicy(allow).refused_by(host, 443) == f"default rule {rule}"


@pytest.mark.parametrize(
    "host",
    ["10.128.2.5", "172.30.0.1", "100.64.0.1", "240.0.0.1", "8.8.8.8", "fd00:10:128::5", "2001:db8::1",
     "64:ff9b::10.1.2.3", "64:ff9b:1::10.1.2.3", "64:ff9b:1:2::10.1.2.3", "64:ff9b:1:a01:2:300::",
     "::ffff:10.1.2.3", "2002:a00:1::1"],
)  # fmt: skip
def test_everything_else_is_permitted_by_default(host: str) -> None:
    assert DestinationPolicy().refused_by(host, 443) == ""


def test_a_list_refuses_what_it_does_not_name() -> None:
    policy = DestinationPolicy(("10.0.0.0/8", "10.9.0.0/16:8443", "[fd00::/8]:1-1024"))
    permitted = [("10.1.2.3", 1), ("10.255.0.1", 65535), ("fd00::1", 1), ("fd00::1", 1024)]
    assert [policy.refused_by(*each) for each in permitted] == [""] * 4
    refused = [("11.0.0.1", 443), ("fd00::1", 1025), ("2001:db8::1", 443)]
    assert [policy.refused_by(*each) for each in refused] == [NOT_LISTED] * 3


def test_a_denied_address_is_refused_whatever_else_permits_it() -> None:
    """In its IPv6 forms too."""
    policy = DestinationPolicy(("10.0.0.0/8", "64:ff9b::/96", "10.0.0.1/32"), ("10.0.0.1/32:443",))
    for host in ("10.0.0.1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1"):
        assert policy.refused_by(host, 443) == "--deny-destinations=10.0.0.1/32:443"
        assert policy.refused_by(host, 444) == ""


@pytest.mark.parametrize(("kind", "network"), DEFAULT_REFUSALS)
def test_a_default_range_is_permitted_by_a_rule_inside_it(kind: str, network: object) -> None:
    """By the range itself and by less, not by more; and `--deny-destinations` still refuses it."""
    host = str(network).partition("/")[0]
    alone = f"{host}/{32 if '.' in host else 128}"
    for allow in (str(network), alone):
        assert DestinationPolicy((allow,)).refused_by(host, 80) == ""
        assert DestinationPolicy((allow,), (alone,)).refused_by(host, 80) == f"--deny-destinations={alone}"
    ports = f"[{alone}]:81" if ":" in alone else f"{alone}:81"
    assert DestinationPolicy((ports,)).refused_by(host, 80) == f"default rule {kind} {network}"
    everything = "0.0.0.0/0" if "." in host else "::/0"
    assert DestinationPolicy((everything,)).refused_by(host, 80) == f"default rule {kind} {network}"


@given(st.ip_addresses(v=4), st.integers(1, 65535))
def test_the_forms_of_an_ipv4_address_are_refused_with_it(ip: object, port: int) -> None:
    policy = DestinationPolicy(deny=PRIVATE)
    refused = policy.refused_by(str(ip), port)
    assert policy.refused_by(f"::ffff:{ip}", port) == refused
    if refused:
        assert policy.refused_by(f"64:ff9b::{ip}", port) == refused


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.0", "10.0.0.0/33", "host/8", "10.0.0.0/8:", "10.0.0.0/8:0", "10.0.0.0/8:65536",
     "10.0.0.0/8:9-8", "10.0.0.0/8:http", "10.0.0.0/8:1-", "10.0.0.0/8:-1", "[fd00::/8", "[fd00::/8]443",
     "fd00::/8:443", "10.0.0.0/8:+1", "10.0.0.0/8:1-2-3", "[fd00::/8]:", "fe80::%1/64"],
)  # fmt: skip
@pytest.mark.parametrize("flag", ["--allow-destinations", "--deny-destinations"])
def test_an_invalid_rule_is_quoted_with_its_flag(text: str, flag: str) -> None:
    with pytest.raises(OperatorError) as error:
        DestinationPolicy((text,) if "allow" in flag else (), (text,) if "deny" in flag else ())
    assert str(error.value).startswith(f"{flag}: invalid")
    assert repr(text) in str(error.value)


def test_host_bits_are_an_error_with_the_network_to_write() -> None:
    """10.0.0.1/8 may mean one address or sixteen million."""
    with pytest.raises(OperatorError, match=r"'10\.0\.0\.1/8': host bits set \(.*10\.0\.0\.0/8\)"):
        DestinationPolicy(("10.0.0.1/8",))
