"""What an agent may dial, and Go's words for what failed."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.runtime.endpoint_policy import (
    DialRejected,
    LookupFailure,
    TcpEndpoint,
    check_endpoint,
    connect_failed,
    dial_timed_out,
    lookup_failed,
)
from bootbridge.wire.connect_request import dial_error_status


@pytest.mark.parametrize(
    ("protocol", "address", "endpoint"),
    [
        ("tcp", "10.0.0.1:443", TcpEndpoint("10.0.0.1", 443)),
        ("tcp", "[2001:db8::1]:443", TcpEndpoint("2001:db8::1", 443)),
        ("tcp", "webhook.ns.svc:65535", TcpEndpoint("webhook.ns.svc", 65535)),
        ("tcp", "webhook.ns.svc.:1", TcpEndpoint("webhook.ns.svc.", 1)),
        ("tcp", "[fe80::1%eth0]:80", TcpEndpoint("fe80::1%eth0", 80)),
        ("tcp4", "10.0.0.1:443", TcpEndpoint("10.0.0.1", 443, "tcp4")),
        ("tcp6", "localhost:443", TcpEndpoint("localhost", 443, "tcp6")),
    ],
)
def test_tcp_endpoints_may_be_dialled(protocol: str, address: str, endpoint: TcpEndpoint) -> None:
    """By IPv4, IPv6 and name; the endpoint prints as the address it came from."""
    assert check_endpoint(protocol, address) == endpoint
    assert endpoint.address == address


def test_tcp4_and_tcp6_restrict_the_ip_version() -> None:
    """A literal of the other family is refused."""
    assert TcpEndpoint("h", 1, "tcp4").ip_versions == (4,)
    assert TcpEndpoint("h", 1, "tcp").ip_versions == (4, 6)
    assert check_endpoint("tcp4", "[::1]:1") == DialRejected(
        "dial tcp4: address ::1: no suitable address found"
    )
    assert check_endpoint("tcp6", "127.0.0.1:1") == DialRejected(
        "dial tcp6: address 127.0.0.1: no suitable address found"
    )


@pytest.mark.parametrize("protocol", ["udp", "unix", "unixgram", "ip", "TCP", "tcp5", ""])
def test_no_other_protocol_is_dialled(protocol: str) -> None:
    """A frontend must not reach the unix sockets and UDP services of the agent's host."""
    assert check_endpoint(protocol, "10.0.0.1:443") == DialRejected(
        f"dial {protocol}: unknown network {protocol}: agents dial tcp only"
    )


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("10.0.0.1", "dial tcp: address 10.0.0.1: missing port in address"),
        ("::1", "dial tcp: address ::1: too many colons in address"),
        ("a:0", "dial tcp: address 0: invalid port"),
        ("a:70000", "dial tcp: address 70000: invalid port"),
        (":443", "dial tcp: address :443: missing host in address"),
        ("/run/x.sock", "dial tcp: address /run/x.sock: missing port in address"),
        ("a..b:1", "dial tcp: lookup a..b: no such host"),
        ("a\x00b:1", "dial tcp: lookup a?b: no such host"),
        ("-/etc:1", "dial tcp: lookup -/etc: no such host"),
        ("bücher.example:1", "dial tcp: lookup bücher.example: no such host"),
        (f"{'a' * 64}.example:1", f"dial tcp: lookup {'a' * 64}.example: no such host"),
        ("[fe80::1%\x00]:1", "dial tcp: lookup fe80::1%?: no such host"),
        ("10.0.0.1%eth0:1", "dial tcp: lookup 10.0.0.1%eth0: no such host"),
    ],
)
def test_what_cannot_be_dialled_is_refused_before_a_resolver_sees_it(address: str, error: str) -> None:
    """In Go's words, on one line."""
    assert check_endpoint("tcp", address) == DialRejected(error)


@given(
    st.sampled_from(["tcp", "tcp4", "x" * 5000]),
    st.one_of(st.text(), st.text().map(lambda t: t * 500 + ":1")),
)
def test_any_wish_gives_an_endpoint_or_a_short_refusal(protocol: str, address: str) -> None:
    """The error is bounded and has no control characters."""
    answer = check_endpoint(protocol, address)
    if isinstance(answer, DialRejected):
        assert len(answer.error) < 700
        assert answer.error.isprintable()
    else:
        assert answer.host.isascii()


@pytest.mark.parametrize(
    ("number", "text", "status"),
    [
        (errno.ECONNREFUSED, "dial tcp 10.0.0.1:443: connect: connection refused", 502),
        (errno.ENETUNREACH, "dial tcp 10.0.0.1:443: connect: network is unreachable", 502),
        (errno.EHOSTUNREACH, "dial tcp 10.0.0.1:443: connect: no route to host", 502),
        (errno.ECONNRESET, "dial tcp 10.0.0.1:443: connect: connection reset by peer", 502),
        (errno.EACCES, "dial tcp 10.0.0.1:443: connect: permission denied", 502),
        (errno.ETIMEDOUT, "dial tcp 10.0.0.1:443: connect: connection timed out", 502),
        (errno.EMFILE, "dial tcp 10.0.0.1:443: socket: too many open files", 503),
        (errno.ENFILE, "dial tcp 10.0.0.1:443: socket: too many open files in system", 503),
        (9999, "dial tcp 10.0.0.1:443: connect: errno 9999", 502),
    ],
)
def test_a_failed_connect_has_gos_error_text(number: int, text: str, status: int) -> None:
    """And those words give the HTTP status that upstream's server gives."""
    assert connect_failed("10.0.0.1:443", number) == text
    assert dial_error_status(text) == status


def test_an_unanswered_dial_is_an_io_timeout() -> None:
    """The caller receives 504."""
    text = dial_timed_out("198.18.0.254:1234")
    assert text == "dial tcp 198.18.0.254:1234: i/o timeout"
    assert dial_error_status(text) == 504


@pytest.mark.parametrize(
    ("failure", "text", "status"),
    [
        (LookupFailure.NOT_FOUND, "dial tcp: lookup nosuch.example: no such host", 502),
        (LookupFailure.NO_ANSWER, "dial tcp: lookup nosuch.example: server misbehaving", 502),
        (LookupFailure.TIMED_OUT, "dial tcp: lookup nosuch.example: i/o timeout", 504),
    ],
)
def test_a_name_without_address_has_gos_error_text(failure: LookupFailure, text: str, status: int) -> None:
    """The caller receives 502 and ``no such host``."""
    assert lookup_failed("nosuch.example", failure) == text
    assert dial_error_status(text) == status


def test_the_protocol_and_ipv6_show_in_the_text() -> None:
    """As the frontend asked for it."""
    address = TcpEndpoint("::1", 443).address
    assert (
        connect_failed(address, errno.ECONNREFUSED, "tcp6")
        == "dial tcp6 [::1]:443: connect: connection refused"
    )
