"""Encodes and decodes data URLs, which hold file contents in ignition files: base64 or percent-encoded."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

# As the installer writes it; Ignition ignores the media type.
_HEADER = "data:text/plain;charset=utf-8;base64,"


def encode(data: bytes) -> str:
    return _HEADER + base64.b64encode(data).decode()


def decode(url: str) -> bytes:
    """Returns the data. Raises ValueError with the problem, which does not quote the data."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme.lower() != "data":
        raise ValueError("not a data URL")
    header, comma, body = rest.partition(",")
    if not comma:
        raise ValueError("invalid data URL: comma missing")
    if not body.isascii():
        raise ValueError("invalid data URL: contains non-ASCII characters")
    if header.split(";")[-1] != "base64":
        return unquote_to_bytes(body)
    # Line breaks are skipped, as Go's decoder does.
    packed = unquote_to_bytes(body).replace(b"\r", b"").replace(b"\n", b"")
    try:
        return base64.b64decode(packed, validate=True)
    except binascii.Error as error:
        raise ValueError(f"invalid base64 in data URL: {error}") from error
