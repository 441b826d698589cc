"""Is the bearer of this token the agent we expect? The API server decides, by TokenReview.

Answers are remembered in both directions, so that a fleet that reconnects does not queue
behind the rate limit: a yes for a minute and never past the token's own end, a no for ten
seconds. What could not be asked is not remembered. The memory knows tokens by their
SHA-256 only.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bootbridge.errors import BootbridgeError
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.requests import Json, create_token_review
from bootbridge.runtime.tasks import spawn

REVIEW_SECONDS_MAX = 10.0
ALLOWED_SECONDS = 60.0
DENIED_SECONDS = 10.0
# About 2 MiB of memory; past it the oldest answers are forgotten and asked again.
ANSWERS_MAX = 10_000
# Service account tokens are about 1 KiB.
TOKEN_CHARACTERS_MAX = 16_384
SECRET_CHARACTERS_MIN = 8

_BEARER = "Bearer "

# Told after each authentication: "allowed", "denied" or "error", whether it was remembered, seconds.
ReviewObserver = Callable[[str, bool, float], None]


class TokenDenied(BootbridgeError):
    """The agent may not connect, and the real reason; ``transient`` if the token was not judged at all."""

    def __init__(self, reason: str, *, transient: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.transient = transient


@dataclass(frozen=True, slots=True)
class _Verdict:
    """An empty reason means allowed."""

    reason: str = ""
    transient: bool = False

    @property
    def outcome(self) -> str:
        if not self.reason:
            return "allowed"
        return "error" if self.transient else "denied"


class TokenReviewer:
    """Authenticates agents as one service account; identical questions asked at once become one request."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        service_account: str,
        audience: str,
        clock: Callable[[], float],
        metrics_hook: ReviewObserver = lambda outcome, remembered, seconds: None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._service_account = service_account
        self._audience = audience
        self._clock = clock
        self._observe = metrics_hook
        self._memory = _Memory()
        self._reviews: dict[bytes, asyncio.Task[_Verdict]] = {}

    async def authenticate(self, authorization_values: Sequence[str]) -> None:
        """Returns if the one ``authorization`` value is our agent's token; else raises TokenDenied."""
        started = self._clock()
        token = _bearer_token(authorization_values)
        fingerprint = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        verdict = self._memory.recall(fingerprint, started)
        remembered = verdict is not None
        if verdict is None:
            # Shielded: the review belongs to all who ask, and one of them may hang up.
            verdict = await asyncio.shield(self._review_shared(fingerprint, token))
        self._observe(verdict.outcome, remembered, max(0.0, self._clock() - started))
        if verdict.reason:
            raise TokenDenied(verdict.reason, transient=verdict.transient)

    async def aclose(self) -> None:
        """Give up the reviews under way."""
        reviews = list(self._reviews.values())
        for review in reviews:
            review.cancel()
        await asyncio.gather(*reviews, return_exceptions=True)

    def _review_shared(self, fingerprint: bytes, token: str) -> asyncio.Task[_Verdict]:
        review = self._reviews.get(fingerprint)
        if review is None:
            review = spawn(self._review(fingerprint, token), "token review")
            self._reviews[fingerprint] = review
            review.add_done_callback(lambda done: self._reviews.pop(fingerprint, None))
        return review

    async def _review(self, fingerprint: bytes, token: str) -> _Verdict:
        try:
            request = create_token_review(token, self._audience)
            answer = await self._client.send(request, timeout=REVIEW_SECONDS_MAX)
        except (KubeError, KubeUnreachable) as error:
            reason = f"Failed to authenticate request. err:{error}"
            return _Verdict(_failed(reason, token), transient=True)
        reason = self._objection(answer.body)
        verdict = _Verdict(_failed(reason, token) if reason else "")
        self._memory.remember(fingerprint, verdict, self._clock(), _expiry(token))
        return verdict

    def _objection(self, review: Json) -> str:
        """Why the API server's answer does not name our agent; empty if it does."""
        status = review.get("status")
        if not isinstance(status, dict):
            return "lookup failed: the TokenReview came back without a status"
        if status.get("error"):
            return f"lookup failed: {status['error']}"
        if status.get("authenticated") is not True:
            return "lookup failed: service account jwt not valid"
        return self._wrong_audience(status.get("audiences")) or self._wrong_user(status.get("user"))

    def _wrong_audience(self, audiences: object) -> str:
        """An API server that names no audience knows of none; one that does must name ours."""
        if not self._audience or not audiences:
            return ""
        named = audiences if isinstance(audiences, list) else [audiences]
        if self._audience in named:
            return ""
        given = ", ".join(_go_quoted(str(one)) for one in named)
        return f"lookup failed: token is meant for audience {given}. Expected {_go_quoted(self._audience)}"

    def _wrong_user(self, user: object) -> str:
        username = user.get("username") if isinstance(user, dict) else ""
        parts = str(username or "").split(":")
        if len(parts) != 4:
            return "lookup failed: unexpected username format"
        if parts[:2] != ["system", "serviceaccount"]:
            return "lookup failed: username returned is not a service account"
        _, _, namespace, account = parts
        for kind, given, wanted in (
            ("namespace", namespace, self._namespace),
            ("service account", account, self._service_account),
        ):
            if given != wanted:
                return (
                    f"lookup failed: incoming request from {_go_quoted(given)} {kind}. "
                    f"Expected {_go_quoted(wanted)}"
                )
        return ""


@dataclass(slots=True)
class _Remembered:
    verdict: _Verdict
    since: float
    until: float


class _Memory:
    """Verdicts by fingerprint, oldest forgotten first."""

    def __init__(self) -> None:
        self._entries: dict[bytes, _Remembered] = {}

    def recall(self, fingerprint: bytes, now: float) -> _Verdict | None:
        entry = self._entries.get(fingerprint)
        if entry is None:
            return None
        # A clock that was set back must not lengthen a yes: then the answer is asked for anew.
        if entry.since <= now < entry.until:
            return entry.verdict
        del self._entries[fingerprint]
        return None

    def remember(self, fingerprint: bytes, verdict: _Verdict, now: float, token_expiry: float) -> None:
        until = now + DENIED_SECONDS if verdict.reason else min(now + ALLOWED_SECONDS, token_expiry)
        self._entries.pop(fingerprint, None)
        self._entries[fingerprint] = _Remembered(verdict, now, until)
        while len(self._entries) > ANSWERS_MAX:
            del self._entries[next(iter(self._entries))]


def _bearer_token(values: Sequence[str]) -> str:
    if not values:
        raise TokenDenied("Authentication context was not found in metadata")
    if len(values) > 1:
        raise TokenDenied(f"too many ({len(values)}) tokens are received")
    if not values[0].startswith(_BEARER):
        raise TokenDenied('received token does not have "Bearer " prefix')
    token = values[0][len(_BEARER) :]
    if not token or len(token) > TOKEN_CHARACTERS_MAX:
        fault = "too long" if token else "empty"
        raise TokenDenied(f"Failed to validate authentication token, err:the token is {fault}")
    return token


def _expiry(token: str) -> float:
    """The ``exp`` of a JWT the API server has approved; endless where there is none to read."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return float("inf")


def _failed(reason: str, token: str) -> str:
    # The API server's own words are passed on, and those are not ours to vouch for. What is shorter than
    # any secret stays: it would only tear holes into the text.
    if len(token) >= SECRET_CHARACTERS_MIN:
        reason = reason.replace(token, "<token>")
    return f"Failed to validate authentication token, err:{reason}"


def _go_quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
