"""Reads the claims of a service account token without verifying its signature.

A token with wrong claims is invalid with any signature, so the API server need not be asked. Right claims
alone prove nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

# The clocks of API server and proxy-server may differ; go-jose, which the API server uses, allows a minute.
LEEWAY_SECONDS = 60.0
_PART = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ExpectedClaims:
    """What a token of an agent must contain. Without an audience or issuers, any is accepted."""

    audience: str
    issuers: Collection[str] = ()

    def problem(self, claims: dict[str, Any], now: float) -> str:
        """Returns why the API server would deny the token; empty if only the API server can decide."""
        # Tokens of Secrets, which older clusters have, contain neither aud nor exp.
        audiences = claims.get("aud", self.audience)
        if self.audience and self.audience not in (audiences if isinstance(audiences, list) else [audiences]):
            return f"token has another audience than {json.dumps(self.audience)}"
        if self.issuers and claims.get("iss") not in self.issuers:
            return "token has an unexpected issuer"
        return _time_problem(claims, now)


def read_claims(token: str) -> dict[str, Any] | None:
    """Returns the payload of a JWT; None if the token is not three parts of base64url with JSON in two."""
    parts = token.split(".")
    if len(parts) != 3 or not all(map(_PART.fullmatch, parts)):
        return None
    header, claims = _json_object(parts[0]), _json_object(parts[1])
    return claims if header is not None else None


def expiry(claims: dict[str, Any] | None) -> float:
    """Returns the claim ``exp``; infinity without one."""
    seconds = _number(claims.get("exp")) if claims else None
    return float("inf") if seconds is None else seconds


def _time_problem(claims: dict[str, Any], now: float) -> str:
    for name in ("exp", "nbf"):
        if name in claims and _number(claims[name]) is None:
            return f"malformed token: invalid {name}"
    if now > expiry(claims) + LEEWAY_SECONDS:
        return "token has expired"
    not_before = _number(claims.get("nbf"))
    if not_before is not None and now < not_before - LEEWAY_SECONDS:
        return "token is not valid yet"
    return ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _json_object(part: str) -> dict[str, Any] | None:
    try:
        value = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return None
    return value if isinstance(value, dict) else None
