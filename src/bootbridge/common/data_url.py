"""Data URLs, as ignition files carry contents: base64 or percent-encoded, with any parameters."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

# As the installer writes it; the type means nothing to Ignition.
_HEADER = "data:text/plain;charset=utf-8;base64,"


def encode(data: bytes) -> str:
    return _HEADER + base64.b64encode(data).decode()


def decode(url: str) -> bytes:
    """The data; ValueError says what is wrong, without quoting the data."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme.lower() != "data":
        raise ValueError("not a data URL")
    header, comma, body = rest.partition(",")
    if not comma:
        raise ValueError("the data URL has no comma")
    if not body.isascii():
        raise ValueError("the data URL holds characters beyond ASCII")
    if header.split(";")[-1] != "base64":
        return unquote_to_bytes(body)
    # Line breaks are skipped, as Go's decoder does.
    packed = unquote_to_bytes(body).replace(b"\r", b"").replace(b"\n", b"")
    try:
        return base64.b64decode(packed, validate=True)
    except binascii.Error as error:
        raise ValueError(f"invalid base64 in data URL: {error}") from error
