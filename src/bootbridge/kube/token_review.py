"""Authenticates agents: the API server reviews their service account token (TokenReview).

Any peer that reaches the agent port can send tokens, and reviews are limited by `--kubeconfig-qps`. So a
token with wrong claims is denied without a review; a review is cancelled when its last caller has gone; and
reviews wait in a queue in which every source has the same share.

Results are cached, so that a reconnecting fleet does not queue behind the rate limit: an accepted
token for a minute and at most until it expires, a denied one for ten seconds. Failed reviews are not
cached. The cache holds only the SHA-256 of a token.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from bootbridge.errors import BootbridgeError
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.request_turns import RequestTurns
from bootbridge.kube.requests import ApiRequest, Json
from bootbridge.kube.service_account_token import ExpectedClaims, expiry, read_claims
from bootbridge.runtime.tasks import spawn

REVIEW_SECONDS_MAX = 10.0
ALLOWED_SECONDS = 60.0
DENIED_SECONDS = 10.0
# About 2 MiB of memory; above it the oldest results are dropped.
CACHED_RESULTS_MAX = 10_000
# Service account tokens are about 1 KiB.
TOKEN_CHARACTERS_MAX = 16_384
SECRET_CHARACTERS_MIN = 8

_BEARER = "Bearer "

# Called after each authentication with "allowed", "denied", "error" or "invalid" (denied without a review),
# whether it was cached, and seconds.
ReviewObserver = Callable[[str, bool, float], None]


class TokenDenied(BootbridgeError):
    """The agent may not connect, and why; ``transient`` if the token could not be reviewed."""

    def __init__(self, reason: str, *, transient: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.transient = transient


@dataclass(frozen=True, slots=True)
class _ReviewResult:
    """An empty reason means allowed."""

    reason: str = ""
    transient: bool = False

    @property
    def outcome(self) -> str:
        if not self.reason:
            return "allowed"
        return "error" if self.transient else "denied"


class TokenReviewer:
    """Authenticates agents as one service account; concurrent reviews of one token share one request."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        service_account: str,
        audience: str,
        clock: Callable[[], float],
        metrics_hook: ReviewObserver = lambda outcome, cached, seconds: None,
        issuers: Collection[str] = (),
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._service_account = service_account
        self._audience = audience
        self._clock = clock
        self._observe = metrics_hook
        self._expected = ExpectedClaims(audience, issuers)
        self._cache = _ReviewCache()
        self._reviews: dict[bytes, _Review] = {}
        hint = "raise --kubeconfig-qps and --kubeconfig-burst"
        self._turns = RequestTurns(client.take_permit, client.qps, REVIEW_SECONDS_MAX, hint)

    async def authenticate(self, authorization_values: Sequence[str], source: str = "") -> float:
        """Returns when the token expires, in seconds since the epoch; infinity if it does not.

        Raises TokenDenied unless the one ``authorization`` value is a token of the agents' account.
        ``source`` is what shares of the API server's reviews are counted by.
        """
        started = self._clock()
        token = _bearer_token(authorization_values)
        fingerprint = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        result = self._cache.get(fingerprint, started)
        cached = result is not None
        if result is None:
            if problem := self._wrong_claims(token, started):
                self._observe("invalid", False, 0.0)
                raise TokenDenied(_failed(problem, token))
            result = await self._review_shared(fingerprint, token, source)
        self._observe(result.outcome, cached, max(0.0, self._clock() - started))
        if result.reason:
            raise TokenDenied(result.reason, transient=result.transient)
        return expiry(read_claims(token))

    async def aclose(self) -> None:
        """Cancels the reviews in progress."""
        reviews = [review.task for review in self._reviews.values()]
        for review in reviews:
            review.cancel()
        self._turns.close()
        await asyncio.gather(*reviews, return_exceptions=True)

    async def _review_shared(self, fingerprint: bytes, token: str, source: str) -> _ReviewResult:
        review = self._reviews.get(fingerprint)
        if review is None:
            review = _Review(spawn(self._review(fingerprint, token, source), "token review"))
            self._reviews[fingerprint] = review
            review.task.add_done_callback(lambda done: self._forget(fingerprint, done))
        review.callers += 1
        try:
            # Shielded: several connections wait for this review, and one of them may close.
            return await asyncio.shield(review.task)
        finally:
            review.callers -= 1
            if not review.callers and not review.task.done():
                self._reviews.pop(fingerprint, None)
                review.task.cancel()

    def _forget(self, fingerprint: bytes, task: asyncio.Task[_ReviewResult]) -> None:
        """Not a newer review of the same token: a cancelled one ends after the next may have begun."""
        review = self._reviews.get(fingerprint)
        if review is not None and review.task is task:
            del self._reviews[fingerprint]

    async def _review(self, fingerprint: bytes, token: str, source: str) -> _ReviewResult:
        try:
            request = _token_review(token, self._audience)
            await self._turns.next(source)
            answer = await self._client.send(request, timeout=REVIEW_SECONDS_MAX, permitted=True)
        except (KubeError, KubeUnreachable) as error:
            reason = f"Failed to authenticate request. err:{error}"
            return _ReviewResult(_failed(reason, token), transient=True)
        reason = self._denial_reason(answer.body)
        result = _ReviewResult(_failed(reason, token) if reason else "")
        self._cache.put(fingerprint, result, self._clock(), expiry(read_claims(token)))
        return result

    def _wrong_claims(self, token: str, now: float) -> str:
        claims = read_claims(token)
        if claims is None:
            return "lookup failed: malformed token"
        if problem := self._expected.problem(claims, now):
            return f"lookup failed: {problem}"
        return self._wrong_user({"username": claims.get("sub")})

    def _denial_reason(self, review: Json) -> str:
        """Returns why the reviewed token is not accepted; empty if it is."""
        status = review.get("status")
        if not isinstance(status, dict):
            return "lookup failed: TokenReview response without a status"
        if status.get("error"):
            return f"lookup failed: {status['error']}"
        if status.get("authenticated") is not True:
            return "lookup failed: service account jwt not valid"
        return self._wrong_audience(status.get("audiences")) or self._wrong_user(status.get("user"))

    def _wrong_audience(self, audiences: object) -> str:
        """An API server without audience support returns none; otherwise ours must be among them."""
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
class _Review:
    """A review in progress; it is cancelled when its last caller has gone."""

    task: asyncio.Task[_ReviewResult]
    callers: int = 0


@dataclass(slots=True)
class _CachedResult:
    result: _ReviewResult
    since: float
    until: float


class _ReviewCache:
    """Results by fingerprint; the oldest are dropped first."""

    def __init__(self) -> None:
        self._entries: dict[bytes, _CachedResult] = {}

    def get(self, fingerprint: bytes, now: float) -> _ReviewResult | None:
        entry = self._entries.get(fingerprint)
        if entry is None:
            return None
        # A clock that was set back must not extend a result: the token is then reviewed again.
        if entry.since <= now < entry.until:
            return entry.result
        del self._entries[fingerprint]
        return None

    def put(self, fingerprint: bytes, result: _ReviewResult, now: float, token_expiry: float) -> None:
        until = now + DENIED_SECONDS if result.reason else min(now + ALLOWED_SECONDS, token_expiry)
        self._entries.pop(fingerprint, None)
        self._entries[fingerprint] = _CachedResult(result, now, until)
        while len(self._entries) > CACHED_RESULTS_MAX:
            del self._entries[next(iter(self._entries))]


def _token_review(token: str, audience: str) -> ApiRequest:
    spec: dict[str, object] = {"token": token}
    if audience:
        spec["audiences"] = [audience]
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    return ApiRequest("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=body)


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


def _failed(reason: str, token: str) -> str:
    # The API server's message is passed on and might contain the token. A string shorter than any real token
    # is left in place, because replacing it would garble the message.
    if len(token) >= SECRET_CHARACTERS_MIN:
        reason = reason.replace(token, "<token>")
    return f"Failed to validate authentication token, err:{reason}"


def _go_quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
