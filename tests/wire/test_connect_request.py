"""HTTP CONNECT: the head a kube-apiserver sends, and the exact replies it may get."""

from __future__ import annotations

import pytest

from bootbridge.errors import LocalError
from bootbridge.wire import connect_request
from bootbridge.wire.connect_request import (
    CONNECTION_ESTABLISHED,
    HEAD_BYTES_MAX,
    ConnectParser,
    ConnectRequest,
    Refusal,
    agent_lost_reply,
    dial_error_reply,
    dial_error_status,
    dial_timeout_reply,
    no_agent_reply,
)
from tests.support import growth

KUBE_APISERVER = b"CONNECT 10.128.2.5:8443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

Outcome = tuple[ConnectRequest | Refusal | None, bytes]


def parse(*pieces: bytes, head_bytes_max: int = HEAD_BYTES_MAX) -> Outcome:
    """Feeds the pieces; returns the result and all bytes that belong to the tunnel."""
    parser = ConnectParser(head_bytes_max)
    for index, piece in enumerate(pieces):
        result = parser.receive(piece)
        if result is not None:
            rest = b"".join(pieces[index + 1 :]) if isinstance(result, ConnectRequest) else b""
            return result, parser.leftover + rest
    return None, b""


def refusal(head: bytes) -> Refusal:
    result, leftover = parse(head)
    assert isinstance(result, Refusal)
    assert leftover == b""
    return result


# --- requests --------------------------------------------------------------------------


def test_the_head_of_a_kube_apiserver_is_parsed() -> None:
    """The destination is the request target, not the Host header."""
    assert parse(KUBE_APISERVER) == (ConnectRequest("10.128.2.5:8443"), b"")


def test_bytes_pipelined_behind_the_head_are_kept() -> None:
    """They are the first bytes of the tunnel."""
    assert parse(KUBE_APISERVER + b"\x16\x03\x01\r\n\r\nhello") == (
        ConnectRequest("10.128.2.5:8443"),
        b"\x16\x03\x01\r\n\r\nhello",
    )


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT a.example:443 HTTP/1.1\r\n\r\n",
        b"CONNECT a.example:443 HTTP/1.0\r\nhost: x\r\n\r\n",
        b"CONNECT a.example:443 HTTP/1.1\nHost: x\n\n",
        b"CONNECT a.example:443 HTTP/1.1\r\nHost: x\n\r\n",
        b"CONNECT a.example:443 HTTP/1.1\r\nEmpty:\r\n\r\n",
        b"CONNECT a.example:443 HTTP/1.1\r\nX-Name: caf\xc3\xa9\tau lait\r\n\r\n",
    ],
)
def test_heads_of_other_clients_are_parsed(head: bytes) -> None:
    """No Host header, HTTP/1.0, bare line feeds, empty and non-ASCII values are all fine."""
    assert parse(head) == (ConnectRequest("a.example:443"), b"")


def test_the_user_agent_is_kept_for_the_log() -> None:
    """Its name is case-insensitive and the space around the value is not part of it."""
    head = b"CONNECT a:1 HTTP/1.1\r\nUSER-agent: \t kube-apiserver/v1.34 \r\n\r\n"
    assert parse(head)[0] == ConnectRequest("a:1", "kube-apiserver/v1.34")


@pytest.mark.parametrize(
    "target",
    [
        "10.0.0.1:1",
        "node-1.example:65535",
        "[::1]:443",
        "[2001:db8::5]:8443",
        "[fe80::1%25eth0]:80",
        "a_b:00443",
    ],
)
def test_names_and_addresses_of_both_families_may_be_targets(target: str) -> None:
    """An IPv6 literal stands in brackets."""
    assert parse(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())[0] == ConnectRequest(target)


# --- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        "a",
        "a:",
        ":443",
        "::1",
        "::1:443",
        "[::1]",
        "[]:443",
        "a:b",
        "a:-1",
        "/path",
        "http://a:443",
        "u@a:443",
        "*",
    ],
)
def test_a_target_without_host_and_port_is_refused(target: str) -> None:
    """The reason says what a target looks like."""
    refused = refusal(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
    assert (refused.status, refused.reason) == (400, "the CONNECT target must be host:port or [IPv6]:port")


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_port_that_cannot_be_dialled_is_refused(port: str) -> None:
    """The reason names the port."""
    refused = refusal(f"CONNECT a:{port} HTTP/1.1\r\n\r\n".encode())
    assert (refused.status, refused.reason) == (
        400,
        f"the CONNECT target's port {port} is not within 1..65535",
    )


def test_another_method_is_refused_as_the_go_server_does() -> None:
    """405 with upstream's exact body."""
    refused = refusal(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert refused.reply == (
        b"HTTP/1.1 405 Method Not Allowed\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"X-Content-Type-Options: nosniff\r\n"
        b"Allow: CONNECT\r\n"
        b"Content-Length: 45\r\n"
        b"Connection: close\r\n"
        b"\r\n"
        b"this proxy only supports CONNECT passthrough\n"
    )


def test_the_method_is_case_sensitive() -> None:
    """``connect`` is another method."""
    assert refusal(b"connect a:1 HTTP/1.1\r\n\r\n").status == 405


@pytest.mark.parametrize(
    "line",
    [
        b"CONNECT",
        b"CONNECT a:1",
        b"CONNECT  a:1 HTTP/1.1",
        b"CONNECT a:1 HTTP/1.1 ",
        b"CONNECT a:1 HTTP/11",
        b"CONNECT a:1\r HTTP/1.1",
        b"CON\x00NECT a:1 HTTP/1.1",
    ],
)
def test_a_malformed_request_line_is_refused(line: bytes) -> None:
    refused = refusal(line + b"\r\n\r\n")
    assert (refused.status, refused.reason) == (400, "malformed request line")


@pytest.mark.parametrize(
    "line", [b"no colon", b": no name", b"two words: x", b" folded", b"Host : x", b"X: a\x00b", b"X: a\rb"]
)
def test_a_malformed_header_line_is_refused(line: bytes) -> None:
    """400, control characters and folded lines included."""
    refused = refusal(b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n\r\n")
    assert refused.reply == (
        b"HTTP/1.1 400 Bad Request\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Connection: close\r\n"
        b"\r\n"
        b"400 Bad Request: malformed header line"
    )


def test_a_grpc_caller_gets_an_error_that_names_http_connect() -> None:
    """The HTTP/2 preface gets 505 and a hint, the usual cause being a mode that differs."""
    refused = refusal(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert refused.status == 505
    assert "HTTP/1.1 CONNECT, not HTTP/2.0" in refused.reason


def test_a_tls_caller_on_a_plain_socket_is_refused_at_its_first_byte() -> None:
    """It would otherwise wait for an answer until the header timeout."""
    assert refusal(b"\x16").reason == "a TLS handshake on a plain HTTP socket"


def test_a_head_of_exactly_the_limit_is_accepted() -> None:
    """The limit counts the whole head with its empty line, and nothing behind it."""
    padding = HEAD_BYTES_MAX - len(KUBE_APISERVER) - len(b"X: \r\n")
    head = KUBE_APISERVER[:-2] + b"X: " + b"a" * padding + b"\r\n\r\n"
    assert len(head) == HEAD_BYTES_MAX
    assert parse(head + b"more") == (ConnectRequest("10.128.2.5:8443"), b"more")


def test_a_head_past_the_limit_is_refused() -> None:
    """431, whether or not its end has arrived."""
    padding = HEAD_BYTES_MAX - len(KUBE_APISERVER) - len(b"X: \r\n") + 1
    head = KUBE_APISERVER[:-2] + b"X: " + b"a" * padding + b"\r\n\r\n"
    assert refusal(head).status == 431
    assert refusal(head[:HEAD_BYTES_MAX]).status == 431


def test_no_expression_of_a_head_backtracks() -> None:
    """Each is matched at one position; one that gives characters back would take seconds for 64 KiB."""
    found = growth.patterns(connect_request)
    assert len(found) >= 4
    assert [name for name, each in found.items() if growth.backtracks(each)] == []


@pytest.mark.parametrize("filler", [b" ", b"\t", b"a", b":", b"\r", b"\n", b"X: y\r\n", b"%", b"."])
@pytest.mark.parametrize("start", [b"CONNECT ", b"CONNECT a:1 HTTP/1.1\r\n", b"CONNECT a:1 HTTP/1.1\r\nX:"])
def test_twice_the_head_is_twice_the_work(start: bytes, filler: bytes) -> None:
    """Up to 64 KiB, whole and in pieces."""

    def work(size: int, piece: int) -> int:
        head = start + filler * ((size - len(start) - 5) // len(filler)) + b"\x00\r\n\r\n"
        return growth.lines(lambda: fed(head, piece))

    for pieces in (1, 64):
        once, twice = (work(size, size // pieces) for size in (HEAD_BYTES_MAX // 2, HEAD_BYTES_MAX))
        assert twice <= 2.2 * once + 100


def fed(head: bytes, piece: int) -> None:
    parser = ConnectParser()
    for at in range(0, len(head), piece):
        if parser.receive(head[at : at + piece]) is not None:
            return


def test_nothing_can_be_fed_after_the_decision() -> None:
    """Later bytes are the tunnel's; giving them to the parser would lose them."""
    parser = ConnectParser()
    parser.receive(KUBE_APISERVER)
    with pytest.raises(LocalError):
        parser.receive(b"x")


# --- replies ---------------------------------------------------------------------------


def test_success_is_one_line_and_nothing_else() -> None:
    """kube-apiserver fails on any byte that comes with it."""
    assert CONNECTION_ESTABLISHED == b"HTTP/1.1 200 Connection Established\r\n\r\n"


def test_no_agent_has_upstreams_error_text() -> None:
    """500 with the exact bytes."""
    assert no_agent_reply() == (
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\n"
        b"currently no tunnels available: No agent available"
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("dial tcp 198.18.0.254:1234: i/o timeout", 504),
        ("context Deadline Exceeded", 504),
        ("TLS handshake TIMEOUT", 504),
        ("dial tcp 10.0.0.1:443: socket: too many open files", 503),
        ("timeout after too many open files", 504),
        ("dial tcp 10.0.0.1:443: connect: connection refused", 502),
        ("dial tcp: lookup nosuch.example: no such host", 502),
        ("connection timed out", 502),
        ("", 502),
    ],
)
def test_a_dial_error_becomes_a_status_by_its_text(error: str, status: int) -> None:
    """The first rule that matches wins, without regard to case."""
    assert dial_error_status(error) == status


@pytest.mark.parametrize(
    ("error", "line"),
    [("i/o timeout", b"504 Gateway Timeout"), ("too many open files", b"503 Service Unavailable")],
)
def test_a_dial_error_reply_has_the_status_line_of_its_status(error: str, line: bytes) -> None:
    """The body is the agent's text, unchanged."""
    assert (
        dial_error_reply(error)
        == (b"HTTP/1.1 " + line + b"\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n")
        + error.encode()
    )


def test_a_refused_endpoint_is_a_bad_gateway_with_the_agents_error() -> None:
    """502 and a body that contains ``connection refused``."""
    assert dial_error_reply("dial tcp 10.0.0.1:443: connect: connection refused") == (
        b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
        b"dial tcp 10.0.0.1:443: connect: connection refused"
    )


def test_an_error_text_with_invalid_unicode_cannot_break_the_reply() -> None:
    """A lone surrogate is replaced, not raised."""
    assert dial_error_reply("bad \udcff").endswith(b"\r\n\r\nbad ?")


def test_a_failure_between_server_and_agent_names_that_hop() -> None:
    """Agent lost and timed out have upstream's exact bytes."""
    plain = b"\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    assert agent_lost_reply() == (
        b"HTTP/1.1 502 Bad Gateway" + plain + b"Backend context error: context canceled\r\n"
    )
    assert dial_timeout_reply() == (
        b"HTTP/1.1 504 Gateway Timeout"
        + plain
        + b"Backend dial timeout: timed out waiting for backend dial\r\n"
    )
