"""Parses HTTP CONNECT requests, and formats the replies.

A kube-apiserver sends exactly ``CONNECT host:port HTTP/1.1`` with a ``Host`` header. Other clients
add headers, end lines with a bare LF or use HTTP/1.0, all of which Go's server accepts. Bytes behind
the head belong to the tunnel and stay in ``leftover``.

The result depends on the bytes only, not on how they were split. A first byte that cannot start a
method is refused at once. A head that reaches the limit without its end is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from bootbridge.errors import LocalError

# Go's server allows 1 MiB. But the caller is not authenticated yet, and thousands of idle callers may
# each hold this much. 64 KiB is a thousand times the head of a kube-apiserver.
HEAD_BYTES_MAX = 64 * 1024
_REMEMBERED_BYTES_MAX = 512

CONNECTION_ESTABLISHED = b"HTTP/1.1 200 Connection Established\r\n\r\n"
ONLY_CONNECT = "this proxy only supports CONNECT passthrough\n"

_STATUS_LINES = {
    400: "400 Bad Request",
    405: "405 Method Not Allowed",
    431: "431 Request Header Fields Too Large",
    500: "500 Internal Server Error",
    502: "502 Bad Gateway",
    503: "503 Service Unavailable",
    504: "504 Gateway Timeout",
    505: "505 HTTP Version Not Supported",
}

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIRST_BYTE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]")
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e\x80-\xff]+) HTTP/([0-9])\.([0-9])")
_HEADER = re.compile(rb"(" + _TOKEN + rb"):([\t\x20-\x7e\x80-\xff]*)")
_AUTHORITY = re.compile(
    r"(?:\[[0-9A-Fa-f:.]+(?:%[0-9A-Za-z._~%-]+)?\]|[^\x00-\x20\x7f-\xff:/?#@\[\]\\]+):([0-9]{1,5})"
)


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """``target`` is always ``host:port`` or ``[v6]:port``."""

    target: str
    user_agent: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rejected head; send ``reply`` before closing."""

    status: int
    reason: str

    @property
    def reply(self) -> bytes:
        if self.status == 405:
            return _method_not_allowed()
        return _reply(self.status, f"{_STATUS_LINES[self.status]}: {self.reason}", _PLAIN_UTF8, _CLOSE)


class ConnectParser:
    """Collects bytes until the head is complete or invalid. Parses one head only."""

    __slots__ = ("_buffer", "_decided", "_head_bytes_max", "_searched", "leftover")

    def __init__(self, head_bytes_max: int = HEAD_BYTES_MAX) -> None:
        self._head_bytes_max = head_bytes_max
        self._buffer = bytearray()
        self._searched = 0
        self._decided = False
        self.leftover = b""

    def receive(self, data: bytes) -> ConnectRequest | Refusal | None:
        """Returns the request, a refusal, or None while the head is incomplete."""
        if self._decided:
            raise LocalError("bytes after a CONNECT head belong to the tunnel, not to its parser")
        self._buffer += data
        result = self._decide()
        if result is not None:
            self._decided = True
            self._buffer = bytearray()
        return result

    def _decide(self) -> ConnectRequest | Refusal | None:
        buffer = self._buffer
        if not buffer:
            return None
        if not _FIRST_BYTE.match(buffer):
            return Refusal(400, _not_http(buffer[0]))
        end = _END_OF_HEAD.search(buffer, self._searched)
        if end is not None and end.end() <= self._head_bytes_max:
            result = _parse(bytes(buffer[: end.start()]))
            if isinstance(result, ConnectRequest):
                self.leftover = bytes(buffer[end.end() :])
            return result
        if len(buffer) >= self._head_bytes_max:
            return Refusal(431, f"the request head exceeds {self._head_bytes_max} bytes")
        self._searched = max(0, len(buffer) - 2)  # the end may be cut after "\n" or "\n\r"
        return None


def parse_head(head: bytes) -> ConnectRequest | Refusal:
    """Parses a complete head, given without its last line end and the empty line."""
    request_line, *header_lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    request = _REQUEST_LINE.fullmatch(request_line)
    if request is None:
        return Refusal(400, "malformed request line")
    method, target, major, minor = request.groups()
    if major != b"1":
        version = f"{major.decode()}.{minor.decode()}"
        return Refusal(505, f"this frontend speaks HTTP/1.1 CONNECT, not HTTP/{version} (a gRPC caller?)")
    user_agent = b""
    for line in header_lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            return Refusal(400, "malformed header line")
        if header[1].lower() == b"user-agent":
            user_agent = header[2].strip(b" \t")
    if method != b"CONNECT":
        return Refusal(405, ONLY_CONNECT.rstrip())
    return _request_for(target.decode("latin-1"), user_agent.decode("latin-1"))


_parse_again = lru_cache(maxsize=256)(parse_head)


def _parse(head: bytes) -> ConnectRequest | Refusal:
    """Parses with a cache: a kube-apiserver repeats the same few short heads."""
    return (_parse_again if len(head) <= _REMEMBERED_BYTES_MAX else parse_head)(head)


def _request_for(target: str, user_agent: str) -> ConnectRequest | Refusal:
    authority = _AUTHORITY.fullmatch(target)
    if authority is None:
        return Refusal(400, "the CONNECT target must be host:port or [IPv6]:port")
    if not 1 <= int(authority[1]) <= 65535:
        return Refusal(400, f"the CONNECT target's port {authority[1]} is not within 1..65535")
    return ConnectRequest(target, user_agent)


def _not_http(first_byte: int) -> str:
    if first_byte == 0x16:
        return "a TLS handshake on a plain HTTP socket"
    return "malformed request line"


# --- replies ---------------------------------------------------------------------------

_CLOSE = "Connection: close"
_PLAIN_UTF8 = "Content-Type: text/plain; charset=utf-8"


def no_agent_reply(error: str = "No agent available") -> bytes:
    """For a dial that no agent can take."""
    return _reply(500, f"currently no tunnels available: {error}", "Content-Type: text/plain")


def dial_error_status(error: str) -> int:
    """Returns the status for an agent's dial error, by its text: Go agents send nothing else."""
    text = error.lower()
    if "timeout" in text or "deadline exceeded" in text:
        return 504
    return 503 if "too many open files" in text else 502


def dial_error_reply(error: str) -> bytes:
    """For a dial that failed in the agent."""
    return _reply(dial_error_status(error), error, _CLOSE, _PLAIN_UTF8)


def agent_lost_reply() -> bytes:
    """For a dial whose agent was lost."""
    return _hop_failed(502, "Backend context error: context canceled")


def dial_timeout_reply() -> bytes:
    """For a dial without an answer in time."""
    return _hop_failed(504, "Backend dial timeout: timed out waiting for backend dial")


def _hop_failed(status: int, text: str) -> bytes:
    return _reply(status, f"{text}\r\n", _PLAIN_UTF8)


def _method_not_allowed() -> bytes:
    return _reply(
        405,
        ONLY_CONNECT,
        _PLAIN_UTF8,
        "X-Content-Type-Options: nosniff",
        "Allow: CONNECT",
        f"Content-Length: {len(ONLY_CONNECT)}",
        _CLOSE,
    )


def _reply(status: int, body: str, *headers: str) -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {_STATUS_LINES[status]}", *headers))
    return f"{head}\r\n\r\n{body}".encode("utf-8", "replace")
