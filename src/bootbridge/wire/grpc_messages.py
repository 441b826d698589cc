"""gRPC over HTTP/2: length-prefixed messages, request and response headers, status.

``MessageReader`` splits the DATA of one stream into messages. It passes each message on as
(buffer, start, end), where possible in the buffer in which it was received.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final
from urllib.parse import quote, unquote

from bootbridge import __version__
from bootbridge.errors import PeerError
from bootbridge.wire.frame_buffer import FrameBuffer
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.packets import Buffer

# Names us to a peer: an agent as `user-agent`, a server as `server`.
PRODUCT: Final = f"bootbridge/{__version__}"

# Status codes that we send or handle.
OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
ALREADY_EXISTS: Final = 6
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
ABORTED: Final = 10
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16

# The names that Go's metrics use for the codes.
STATUS_NAMES: Final = (
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
)

# The default limit of grpc-go, so no peer depends on more.
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
PREFIX: Final = Struct(">BL")
PREFIX_SIZE: Final = 5

# RFC 3986 would escape these too; a grpc-message does not.
_PLAIN_IN_MESSAGES: Final = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"

# The units of a grpc-timeout, and how many seconds each is.
_TIMEOUT_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT_DIGITS_MAX: Final = 8

MessageSink = Callable[[Buffer, int, int], None]


class GrpcError(PeerError):
    """A gRPC error of the peer; ``code`` is the gRPC status."""


def message_prefix(size: int) -> bytes:
    return PREFIX.pack(0, size)


class MessageReader:
    """Splits one stream's DATA into messages, and calls ``sink(buffer, start, end)`` for each."""

    __slots__ = ("_held", "_sink", "mid_message")

    def __init__(self, sink: MessageSink) -> None:
        self._sink = sink
        self._held = FrameBuffer(PREFIX_SIZE)
        self.mid_message = False

    def receive(self, buffer: Buffer, start: int, end: int) -> None:
        held = self._held
        while self.mid_message:
            missing = held.missing
            if end - start < missing:
                self._hold(buffer, start, end)
                return
            self._hold(buffer, start, start + missing)
            start += missing
            if held.size == PREFIX_SIZE:
                held.need = PREFIX_SIZE + _size_at(held.view(), 0)
                if held.need > PREFIX_SIZE:
                    continue
            whole = held.take(PREFIX_SIZE)
            self.mid_message = False
            self._sink(whole, PREFIX_SIZE, len(whole))
        while end - start >= PREFIX_SIZE:
            try:
                stop = start + PREFIX_SIZE + _size_at(buffer, start)
            except GrpcError:
                # The framing is lost: keep the prefix, so that the next call fails too.
                self._hold(buffer, start, start + PREFIX_SIZE)
                raise
            if stop > end:
                held.need = stop - start
                self._hold(buffer, start, end)
                return
            self._sink(buffer, start + PREFIX_SIZE, stop)
            start = stop
        if start < end:
            self._hold(buffer, start, end)

    def _hold(self, buffer: Buffer, start: int, end: int) -> None:
        self._held.add(memoryview(buffer)[start:end])
        self.mid_message = True


def _size_at(buffer: Buffer, start: int) -> int:
    compressed, size = PREFIX.unpack_from(buffer, start)
    if compressed:
        raise GrpcError("compressed message without an agreed compression", INTERNAL)
    if size > MESSAGE_BYTES_MAX:
        raise GrpcError(
            f"received message larger than max ({size} vs. {MESSAGE_BYTES_MAX})", RESOURCE_EXHAUSTED
        )
    return int(size)


# --- headers ------------------------------------------------------------------------------


def request_headers(
    path: str, authority: str, metadata: Headers = (), *, scheme: str = "https"
) -> tuple[tuple[str, str], ...]:
    return (
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("user-agent", PRODUCT),
        ("te", "trailers"),
        *metadata,
    )


def response_headers(metadata: Headers = ()) -> tuple[tuple[str, str], ...]:
    return ((":status", "200"), ("content-type", "application/grpc"), *metadata)


def trailers(status: int, message: str = "") -> tuple[tuple[str, str], ...]:
    status_field = ("grpc-status", str(status))
    if not message:
        return (status_field,)
    return (status_field, ("grpc-message", quote(message, safe=_PLAIN_IN_MESSAGES, errors="replace")))


def refusal(status: int, message: str) -> tuple[tuple[str, str], ...]:
    """Returns a trailers-only response: the call is rejected."""
    return (*response_headers(), *trailers(status, message))


def request_refusal(headers: Headers) -> tuple[tuple[str, str], ...] | None:
    """Returns the response to a request that is not gRPC, or None if it is."""
    fields = dict(headers)
    if fields.get(":method") != "POST":
        text = "gRPC requires HTTP POST"
        return ((":status", "405"), ("content-type", "text/plain"), *trailers(INTERNAL, text))
    if not fields.get("content-type", "").startswith("application/grpc"):
        text = "content-type must be application/grpc"
        return ((":status", "415"), ("content-type", "text/plain"), *trailers(INTERNAL, text))
    return None


def timeout_field(seconds: float) -> tuple[str, str]:
    """Formats a deadline, in milliseconds if they fit into the eight digits that gRPC allows."""
    milliseconds = max(1, round(seconds * 1000))
    if len(str(milliseconds)) <= _TIMEOUT_DIGITS_MAX:
        return ("grpc-timeout", f"{milliseconds}m")
    return ("grpc-timeout", f"{min(round(seconds), 10**_TIMEOUT_DIGITS_MAX - 1)}S")


def timeout_of(headers: Headers) -> float | None:
    """Returns the seconds of a request's deadline; None if it has none, or an invalid one."""
    raw = dict(headers).get("grpc-timeout", "")
    digits, unit = raw[:-1], raw[-1:]
    if unit not in _TIMEOUT_UNITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits) * _TIMEOUT_UNITS[unit] if len(digits) <= _TIMEOUT_DIGITS_MAX else None


def status_of(headers: Headers) -> tuple[int, str]:
    """Returns (status, message) of trailers, or of a trailers-only response."""
    fields = dict(headers)
    raw = fields.get("grpc-status", "")
    if raw.isascii() and raw.isdigit() and len(raw) < 4:
        return int(raw), unquote(fields.get("grpc-message", ""))
    if fields.get(":status", "200") != "200":
        return UNAVAILABLE, f"the peer answered with HTTP status {fields[':status'][:20]}"
    return UNKNOWN, "the peer ended the stream without a gRPC status"
