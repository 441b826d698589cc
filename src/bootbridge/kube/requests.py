"""API requests and responses as plain values, independent of the connection that transfers them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One call. ``repr`` leaves the body out, because it may contain a token.

    ``token``: the bearer token of this call, instead of the client's own.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Json | None = field(default=None, repr=False)
    content_type: str = "application/json"
    token: str = field(default="", repr=False)

    @property
    def target(self) -> str:
        return f"{self.path}?{urlencode(self.query, quote_via=quote)}" if self.query else self.path

    def payload(self) -> bytes:
        return b"" if self.body is None else json.dumps(self.body, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class ApiResponse:
    status: int
    body: Json = field(repr=False)
