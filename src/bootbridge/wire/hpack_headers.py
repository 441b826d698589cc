"""HPACK headers by the ``hpack`` library, with limits, and the rules of RFC 9113 for header fields.

Every field is sent as a literal that is never indexed. Such a block does not depend on the
connection's compression state, so it is built once and used on every connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import hpack
from hpack.exceptions import HPACKError

from bootbridge.wire.frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    PROTOCOL_ERROR,
    Http2ConnectionError,
    StreamError,
)

Headers = Sequence[tuple[str, str]]

# A service account token is about 1.5 KiB; 64 KiB leaves room for much larger metadata.
HEADER_LIST_BYTES_MAX: Final = 65536
# Short enough to hold no credentials, long enough for a Proxy call's headers.
_REMEMBERED_BYTES_MAX: Final = 256
# Sent first if the peer wants a smaller table than the default: size 0.
NO_DYNAMIC_TABLE: Final = b"\x20"

_CONNECTION_HEADERS: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}
)
_FIELD_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")
_NOT_IN_VALUES: Final = re.compile(r"[\x00\r\n]")
# HPACK allows two (RFC 7541, section 4.2). Without a limit, decoding a block of them takes half a second.
_SIZE_UPDATES_MAX: Final = 2
_REQUEST_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})


def encode(headers: Headers) -> bytes:
    # Blocks with credentials are not cached.
    secret = any(name == "authorization" for name, _ in headers)
    return (_encode if secret else _encode_again)(tuple(headers))


def _encode(headers: tuple[tuple[str, str], ...]) -> bytes:
    fields = [hpack.NeverIndexedHeaderTuple(name, value) for name, value in headers]
    return hpack.Encoder().encode(fields)


_encode_again = lru_cache(maxsize=256)(_encode)


class Decoder:
    """The HPACK state of one direction. Raises only Http2ConnectionError.

    Most connections to a gRPC frontend have one request, and its header block, the first of the
    connection, consists of the same bytes every time. So first blocks are cached with their result,
    and decoded into the state only if a second block arrives.
    """

    __slots__ = ("_bytes_max", "_first", "_hpack")

    def __init__(self, bytes_max: int = HEADER_LIST_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._hpack: hpack.Decoder | None = None
        self._first = b""

    def decode(self, block: bytes) -> list[tuple[str, str]]:
        if self._hpack is None:
            if not self._first and len(block) <= _REMEMBERED_BYTES_MAX:
                self._first = block
                return list(_first_block(block))
            self._hpack = hpack.Decoder(max_header_list_size=self._bytes_max)
            if self._first:
                _decode(self._hpack, self._first)
        return _decode(self._hpack, block)


@lru_cache(maxsize=64)
def _first_block(block: bytes) -> tuple[tuple[str, str], ...]:
    return tuple(_decode(hpack.Decoder(max_header_list_size=HEADER_LIST_BYTES_MAX), block))


def _decode(decoder: hpack.Decoder, block: bytes) -> list[tuple[str, str]]:
    if _size_updates(block) > _SIZE_UPDATES_MAX:
        raise Http2ConnectionError("too many table size updates", COMPRESSION_ERROR)
    try:
        fields = decoder.decode(block, raw=True)
    except hpack.OversizedHeaderListError as error:
        raise Http2ConnectionError("header list is too large", ENHANCE_YOUR_CALM) from error
    except (HPACKError, ValueError, IndexError) as error:
        raise Http2ConnectionError("invalid header block", COMPRESSION_ERROR) from error
    return [(_text(name), _text(value)) for name, value in fields]


def _size_updates(block: bytes) -> int:
    """Counts the dynamic table size updates at the start of a header block, up to 3."""
    at = count = 0
    while at < len(block) and block[at] >> 5 == 1 and count <= _SIZE_UPDATES_MAX:
        count += 1
        more = block[at] == 0x3F
        at += 1
        while more and at < len(block):
            more = block[at] > 0x7F
            at += 1
    return count


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else bytes(raw).decode("latin-1")


def request_fault(headers: Headers) -> str | None:
    """Returns why these request headers are malformed (RFC 9113, section 8.3), or None."""
    pseudo = [name for name, _ in headers if name.startswith(":")]
    for name in pseudo:
        if name not in _REQUEST_PSEUDO:
            return f"unknown pseudo-header {name}"
    if len(set(pseudo)) != len(pseudo):
        return "repeated pseudo-header"
    if not {":method", ":scheme", ":path"} <= set(pseudo):
        return "a pseudo-header is missing"
    if not dict(headers)[":path"]:
        return "empty :path"
    return _common_fault(headers)


def response_fault(headers: Headers) -> str | None:
    """Returns why these response headers are malformed, or None."""
    if [name for name, _ in headers if name.startswith(":")] != [":status"]:
        return "a response has exactly one pseudo-header, :status"
    return _common_fault(headers)


def trailers_fault(headers: Headers) -> str | None:
    """Returns why these trailers are malformed, or None."""
    if any(name.startswith(":") for name, _ in headers):
        return "pseudo-header in trailers"
    return _common_fault(headers)


def _common_fault(headers: Headers) -> str | None:
    regular = False
    for name, value in headers:
        if _NOT_IN_VALUES.search(value):
            return "NUL, CR or LF in a header value"
        if name.startswith(":"):
            if regular:
                return "pseudo-header after a regular header"
            continue
        regular = True
        if not _FIELD_NAME.fullmatch(name):
            return "header name is empty, not lower case, or no name at all"
        if name in _CONNECTION_HEADERS or (name == "te" and value != "trailers"):
            return f"connection-specific header {name}"
    return None


def values_of(headers: Iterable[tuple[str, str]], name: str) -> list[str]:
    return [value for key, value in headers if key == name]


def content_length(stream_id: int, headers: Headers) -> int | None:
    """Returns the body size that the headers declare, or None."""
    values = values_of(headers, "content-length")
    if not values:
        return None
    if len(set(values)) > 1 or not (values[0].isascii() and values[0].isdigit() and len(values[0]) < 16):
        raise StreamError(stream_id, "invalid content-length", PROTOCOL_ERROR)
    return int(values[0])
