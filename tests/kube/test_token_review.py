"""Token authentication of agents by TokenReview."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bootbridge.kube import token_review
from bootbridge.kube.client import KubeClient
from bootbridge.kube.token_review import TokenDenied, TokenReviewer
from tests.kube.conftest import access_to, until
from tests.support.fake_api_server import REVIEWS, FakeApiServer, drop, refuse

AUDIENCE = "system:konnectivity-server"
INVALID = "Failed to validate authentication token, err:lookup failed: "


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def user(name: str) -> dict[str, Any]:
    return {"authenticated": True, "user": {"username": name}, "audiences": [AUDIENCE]}


GOOD = user("system:serviceaccount:kube-system:konnectivity-agent")


def jwt(**claims: Any) -> str:
    parts = (b'{"alg":"RS256"}', json.dumps(claims).encode(), b"signature")
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outcomes() -> list[tuple[str, bool]]:
    return []


@pytest.fixture
async def reviewer(
    client: KubeClient, clock: Clock, outcomes: list[tuple[str, bool]]
) -> AsyncIterator[TokenReviewer]:
    def observe(outcome: str, cached: bool, seconds: float) -> None:
        outcomes.append((outcome, cached))

    reviewer = TokenReviewer(client, "kube-system", "konnectivity-agent", AUDIENCE, clock, observe)
    yield reviewer
    await reviewer.aclose()


async def denied(reviewer: TokenReviewer, *values: str) -> TokenDenied:
    with pytest.raises(TokenDenied) as denial:
        await reviewer.authenticate(values)
    return denial.value


class TestKonnectivityCases:
    """Konnectivity's nine cases of token authentication, with its texts."""

    async def test_no_authorization_header(self, reviewer: TokenReviewer) -> None:
        """Covers Konnectivity's cases "no context" and "wrong key": neither has the header."""
        assert str(await denied(reviewer)) == "Authentication context was not found in metadata"

    @pytest.mark.parametrize("value", ["test-token", "bearer test-token", "Basic dTpw", "Bearer", ""])
    async def test_no_bearer_prefix(self, value: str, reviewer: TokenReviewer) -> None:
        assert str(await denied(reviewer, value)) == 'received token does not have "Bearer " prefix'

    async def test_two_tokens(self, reviewer: TokenReviewer) -> None:
        assert str(await denied(reviewer, "Bearer a", "Bearer b")) == "too many (2) tokens are received"

    async def test_not_authenticated(self, api: FakeApiServer, reviewer: TokenReviewer) -> None:
        api.token_reviews["t"] = {"authenticated": False}
        assert str(await denied(reviewer, "Bearer t")) == INVALID + "service account jwt not valid"

    async def test_review_error(self, api: FakeApiServer, reviewer: TokenReviewer) -> None:
        api.token_reviews["t"] = {**GOOD, "error": "token expired"}
        assert str(await denied(reviewer, "Bearer t")) == INVALID + "token expired"

    async def test_wrong_namespace(self, api: FakeApiServer, reviewer: TokenReviewer) -> None:
        api.token_reviews["t"] = user("system:serviceaccount:default:konnectivity-agent")
        expected = INVALID + 'incoming request from "default" namespace. Expected "kube-system"'
        assert str(await denied(reviewer, "Bearer t")) == expected

    async def test_wrong_service_account(self, api: FakeApiServer, reviewer: TokenReviewer) -> None:
        api.token_reviews["t"] = user("system:serviceaccount:kube-system:other")
        expected = INVALID + 'incoming request from "other" service account. Expected "konnectivity-agent"'
        assert str(await denied(reviewer, "Bearer t")) == expected

    async def test_valid_token(self, api: FakeApiServer, reviewer: TokenReviewer) -> None:
        api.token_reviews["t"] = GOOD
        await reviewer.authenticate(["Bearer t"])
        (review,) = api.calls_to("POST", REVIEWS)
        assert review.body["spec"] == {"token": "t", "audiences": [AUDIENCE]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("joe", "unexpected username format"),
        ("system:serviceaccount:kube-system:konnectivity-agent:x", "unexpected username format"),
        ("system:node:kube-system:konnectivity-agent", "username returned is not a service account"),
    ],
)
async def test_a_user_that_is_not_a_service_account_is_refused(
    api: FakeApiServer, reviewer: TokenReviewer, name: str, message: str
) -> None:
    api.token_reviews["t"] = user(name)
    assert str(await denied(reviewer, "Bearer t")) == INVALID + message


async def test_a_review_for_another_audience_is_denied(api: FakeApiServer, reviewer: TokenReviewer) -> None:
    """Konnectivity does not check the returned audiences."""
    api.token_reviews["t"] = {**GOOD, "audiences": ["https://kubernetes.default.svc"]}
    assert "is meant for audience" in str(await denied(reviewer, "Bearer t"))
    api.token_reviews["text"] = {**GOOD, "audiences": f"x{AUDIENCE}x"}
    assert "is meant for audience" in str(await denied(reviewer, "Bearer text"))


async def test_a_review_without_audiences_is_accepted(api: FakeApiServer, reviewer: TokenReviewer) -> None:
    api.token_reviews["t"] = {"authenticated": True, "user": GOOD["user"]}
    await reviewer.authenticate(["Bearer t"])


@pytest.mark.parametrize("verdict", [None, [], "yes", {"authenticated": "true"}, {**GOOD, "user": None}])
async def test_an_invalid_review_status_is_a_denial(
    api: FakeApiServer, reviewer: TokenReviewer, verdict: Any
) -> None:
    api.token_reviews["t"] = verdict
    assert not (await denied(reviewer, "Bearer t")).transient


async def test_empty_and_oversized_tokens_are_denied_without_a_review(
    api: FakeApiServer, reviewer: TokenReviewer
) -> None:
    for token in ("", "x" * 20_000):
        assert "the token is" in str(await denied(reviewer, f"Bearer {token}"))
    assert not api.calls


class TestCache:
    async def test_an_accepted_token_is_cached_for_a_minute(
        self, api: FakeApiServer, reviewer: TokenReviewer, clock: Clock, outcomes: list[tuple[str, bool]]
    ) -> None:
        api.token_reviews["t"] = GOOD
        for seconds in (0, 59):
            clock.now += seconds
            await reviewer.authenticate(["Bearer t"])
        assert len(api.calls) == 1
        clock.now += 1
        await reviewer.authenticate(["Bearer t"])
        assert len(api.calls) == 2
        assert outcomes == [("allowed", False), ("allowed", True), ("allowed", False)]

    async def test_a_denied_token_is_cached_for_ten_seconds(
        self, api: FakeApiServer, reviewer: TokenReviewer, clock: Clock, outcomes: list[tuple[str, bool]]
    ) -> None:
        for seconds in (0, 9.5):
            clock.now += seconds
            await denied(reviewer, "Bearer t")
        assert len(api.calls) == 1
        clock.now += 0.5
        api.token_reviews["t"] = GOOD
        await reviewer.authenticate(["Bearer t"])
        assert outcomes == [("denied", False), ("denied", True), ("allowed", False)]

    async def test_an_entry_expires_with_its_token(
        self, api: FakeApiServer, reviewer: TokenReviewer, clock: Clock
    ) -> None:
        token = jwt(exp=clock.now + 20)
        api.token_reviews[token] = GOOD
        await reviewer.authenticate([f"Bearer {token}"])
        clock.now += 20
        api.token_reviews[token] = {"authenticated": False}
        await denied(reviewer, f"Bearer {token}")

    @pytest.mark.parametrize("claims", [{}, {"exp": "soon"}, {"exp": None}, {"exp": 10**400}])
    async def test_a_token_without_a_valid_expiry_is_cached_for_a_minute(
        self, api: FakeApiServer, reviewer: TokenReviewer, claims: dict[str, Any]
    ) -> None:
        token = jwt(**claims)
        api.token_reviews[token] = GOOD
        for _ in range(2):
            await reviewer.authenticate([f"Bearer {token}"])
        assert len(api.calls) == 1

    async def test_setting_the_clock_back_does_not_extend_an_entry(
        self, api: FakeApiServer, reviewer: TokenReviewer, clock: Clock
    ) -> None:
        api.token_reviews["t"] = GOOD
        await reviewer.authenticate(["Bearer t"])
        clock.now -= 3600
        await reviewer.authenticate(["Bearer t"])
        assert len(api.calls) == 2

    async def test_each_token_has_its_own_entry(self, api: FakeApiServer, reviewer: TokenReviewer) -> None:
        api.token_reviews["t"] = GOOD
        await reviewer.authenticate(["Bearer t"])
        await denied(reviewer, "Bearer t2")

    async def test_the_cache_is_bounded(
        self, api: FakeApiServer, reviewer: TokenReviewer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(token_review, "CACHED_RESULTS_MAX", 3)
        for number in range(5):
            await denied(reviewer, f"Bearer {number}")
        assert len(reviewer._cache._entries) == 3
        await denied(reviewer, "Bearer 4")
        assert len(api.calls) == 5

    @pytest.mark.parametrize("fault", [refuse(403, "Forbidden", "cannot create tokenreviews"), drop])
    async def test_a_failed_review_is_not_cached(
        self, api: FakeApiServer, reviewer: TokenReviewer, outcomes: list[tuple[str, bool]], fault: Any
    ) -> None:
        api.token_reviews["t"] = GOOD
        api.next_faults.append(fault)
        denial = await denied(reviewer, "Bearer t")
        assert denial.transient
        assert "err:Failed to authenticate request. err:" in str(denial)
        await reviewer.authenticate(["Bearer t"])
        assert outcomes == [("error", False), ("allowed", False)]


async def test_a_failed_review_names_the_reason(api: FakeApiServer, reviewer: TokenReviewer) -> None:
    api.next_faults.append(refuse(403, "Forbidden", "cannot create tokenreviews"))
    assert "403 Forbidden: cannot create tokenreviews" in str(await denied(reviewer, "Bearer t"))


async def test_concurrent_reviews_of_one_token_are_one_request(
    api: FakeApiServer, reviewer: TokenReviewer
) -> None:
    api.token_reviews["t"] = GOOD
    api.answering.clear()
    agents = [asyncio.create_task(reviewer.authenticate(["Bearer t"])) for _ in range(50)]
    await until(lambda: api.calls)
    api.answering.set()
    await asyncio.gather(*agents)
    assert len(api.calls) == 1


async def test_a_cancelled_caller_does_not_cancel_a_shared_review(
    api: FakeApiServer, reviewer: TokenReviewer
) -> None:
    api.token_reviews["t"] = GOOD
    api.answering.clear()
    first, second = (asyncio.create_task(reviewer.authenticate(["Bearer t"])) for _ in range(2))
    await until(lambda: api.calls)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    api.answering.set()
    await second


async def test_a_review_has_a_time_limit(
    api: FakeApiServer, reviewer: TokenReviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_review, "REVIEW_SECONDS_MAX", 0.05)
    api.answering.clear()
    denial = await denied(reviewer, "Bearer t")
    assert denial.transient
    assert "timed out after 0.05s" in str(denial)
    api.answering.set()


async def test_agents_above_the_rate_limit_are_denied_at_once_instead_of_queued(
    api: FakeApiServer, clock: Clock
) -> None:
    """In Konnectivity the rate limit delayed TokenReviews by up to 11 minutes."""
    client = KubeClient(access_to(api), qps=0.09, burst=2)  # the third would wait for 11 s
    reviewer = TokenReviewer(client, "kube-system", "konnectivity-agent", AUDIENCE, clock)
    api.token_reviews.update({f"t{n}": GOOD for n in range(2)})
    for number in range(2):
        await reviewer.authenticate([f"Bearer t{number}"])
    async with asyncio.timeout(3):
        denials = await asyncio.gather(*(denied(reviewer, f"Bearer late{n}") for n in range(100)))
    assert all(denial.transient and "--kubeconfig-qps" in str(denial) for denial in denials)
    await reviewer.authenticate(["Bearer t0"])  # cached: needs no request
    await reviewer.aclose()
    await client.aclose()


async def test_closing_cancels_running_reviews(api: FakeApiServer, reviewer: TokenReviewer) -> None:
    api.answering.clear()
    review = asyncio.create_task(reviewer.authenticate(["Bearer t"]))
    await until(lambda: api.calls)
    await reviewer.aclose()
    with pytest.raises(asyncio.CancelledError):
        await review
    api.answering.set()


async def test_the_token_is_not_in_errors_logs_and_repr(
    api: FakeApiServer, reviewer: TokenReviewer, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if the API server quotes it."""
    caplog.set_level(logging.DEBUG)
    secret = jwt(sub="agent")
    api.token_reviews[secret] = {"error": f"invalid token {secret}"}
    api.next_faults.append(refuse(400, "BadRequest", f"cannot decode {secret}"))
    denials = [await denied(reviewer, f"Bearer {secret}") for _ in range(2)]
    assert [str(denial).rpartition("err:")[2] for denial in denials] == [
        "400 BadRequest: cannot decode <token>",
        "lookup failed: invalid token <token>",
    ]
    shown = (
        repr(denials) + repr([denial.__context__ for denial in denials]) + repr(vars(reviewer)) + caplog.text
    )
    assert secret not in shown
