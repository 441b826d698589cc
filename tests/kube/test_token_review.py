"""Token authentication of agents by TokenReview."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bootbridge.kube import token_review
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeThrottled
from bootbridge.kube.request_turns import RequestTurns
from bootbridge.kube.token_review import TokenDenied, TokenReviewer
from tests.kube.conftest import access_to, until
from tests.support.fake_api_server import REVIEWS, FakeApiServer, drop, refuse
from tests.support.token_mode import ISSUER, agent_token

AUDIENCE = "system:konnectivity-server"
INVALID = "Failed to validate authentication token, err:lookup failed: "


NOW = 1_700_000_000


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


def user(name: str) -> dict[str, Any]:
    return {"authenticated": True, "user": {"username": name}, "audiences": [AUDIENCE]}


GOOD = user("system:serviceaccount:kube-system:konnectivity-agent")


def token(name: str = "t", **claims: Any) -> str:
    return agent_token(name, **{"exp": NOW + 86_400, "iat": NOW, **claims})


def bearer(name: str = "t", **claims: Any) -> str:
    return f"Bearer {token(name, **claims)}"


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
        api.token_reviews[token()] = {"authenticated": False}
        assert str(await denied(reviewer, bearer())) == INVALID + "service account jwt not valid"

    async def test_review_error(self, api: FakeApiServer, reviewer: TokenReviewer) -> None:
        api.token_reviews[token()] = {**GOOD, "error": "token expired"}
        assert str(await denied(reviewer, bearer())) == INVALID + "token expired"

    async def test_wrong_namespace(self, api: FakeApiServer, reviewer: TokenReviewer) -> None:
        api.token_reviews[token()] = user("system:serviceaccount:default:konnectivity-agent")
        expected = INVALID + 'incoming request from "default" namespace. Expected "kube-system"'
        assert str(await denied(reviewer, bearer())) == expected

    async def test_wrong_service_account(self, api: FakeApiServer, reviewer: TokenReviewer) -> None:
        api.token_reviews[token()] = user("system:serviceaccount:kube-system:other")
        expected = INVALID + 'incoming request from "other" service account. Expected "konnectivity-agent"'
        assert str(await denied(reviewer, bearer())) == expected

    async def test_valid_token(self, api: FakeApiServer, reviewer: TokenReviewer) -> None:
        api.token_reviews[token()] = GOOD
        await reviewer.authenticate([bearer()])
        (review,) = api.calls_to("POST", REVIEWS)
        assert review.body["spec"] == {"token": token(), "audiences": [AUDIENCE]}


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
    api.token_reviews[token()] = user(name)
    assert str(await denied(reviewer, bearer())) == INVALID + message


async def test_a_review_for_another_audience_is_denied(api: FakeApiServer, reviewer: TokenReviewer) -> None:
    """Konnectivity does not check the returned audiences."""
    api.token_reviews[token()] = {**GOOD, "audiences": ["https://kubernetes.default.svc"]}
    assert "is meant for audience" in str(await denied(reviewer, bearer()))
    api.token_reviews[token("text")] = {**GOOD, "audiences": f"x{AUDIENCE}x"}
    assert "is meant for audience" in str(await denied(reviewer, bearer("text")))


async def test_a_review_without_audiences_is_accepted(api: FakeApiServer, reviewer: TokenReviewer) -> None:
    api.token_reviews[token()] = {"authenticated": True, "user": GOOD["user"]}
    await reviewer.authenticate([bearer()])


@pytest.mark.parametrize("verdict", [None, [], "yes", {"authenticated": "true"}, {**GOOD, "user": None}])
async def test_an_invalid_review_status_is_a_denial(
    api: FakeApiServer, reviewer: TokenReviewer, verdict: Any
) -> None:
    api.token_reviews[token()] = verdict
    assert not (await denied(reviewer, bearer())).transient


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
        api.token_reviews[token()] = GOOD
        for seconds in (0, 59):
            clock.now += seconds
            await reviewer.authenticate([bearer()])
        assert len(api.calls) == 1
        clock.now += 1
        await reviewer.authenticate([bearer()])
        assert len(api.calls) == 2
        assert outcomes == [("allowed", False), ("allowed", True), ("allowed", False)]

    async def test_a_denied_token_is_cached_for_ten_seconds(
        self, api: FakeApiServer, reviewer: TokenReviewer, clock: Clock, outcomes: list[tuple[str, bool]]
    ) -> None:
        for seconds in (0, 9.5):
            clock.now += seconds
            await denied(reviewer, bearer())
        assert len(api.calls) == 1
        clock.now += 0.5
        api.token_reviews[token()] = GOOD
        await reviewer.authenticate([bearer()])
        assert outcomes == [("denied", False), ("denied", True), ("allowed", False)]

    async def test_an_entry_expires_with_its_token(
        self, api: FakeApiServer, reviewer: TokenReviewer, clock: Clock
    ) -> None:
        soon = {"exp": clock.now + 20}
        api.token_reviews[token(**soon)] = GOOD
        await reviewer.authenticate([bearer(**soon)])
        clock.now += 20
        api.token_reviews[token(**soon)] = {"authenticated": False}
        await denied(reviewer, bearer(**soon))

    async def test_a_token_without_an_expiry_is_cached_for_a_minute(
        self, api: FakeApiServer, reviewer: TokenReviewer
    ) -> None:
        api.token_reviews[token(exp=None)] = GOOD
        for _ in range(2):
            await reviewer.authenticate([bearer(exp=None)])
        assert len(api.calls) == 1

    async def test_setting_the_clock_back_does_not_extend_an_entry(
        self, api: FakeApiServer, reviewer: TokenReviewer, clock: Clock
    ) -> None:
        api.token_reviews[token()] = GOOD
        await reviewer.authenticate([bearer()])
        clock.now -= 3600
        await reviewer.authenticate([bearer()])
        assert len(api.calls) == 2

    async def test_each_token_has_its_own_entry(self, api: FakeApiServer, reviewer: TokenReviewer) -> None:
        api.token_reviews[token()] = GOOD
        await reviewer.authenticate([bearer()])
        await denied(reviewer, bearer("t2"))

    async def test_the_cache_is_bounded(
        self, api: FakeApiServer, reviewer: TokenReviewer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(token_review, "CACHED_RESULTS_MAX", 3)
        for number in range(5):
            await denied(reviewer, bearer(str(number)))
        assert len(reviewer._cache._entries) == 3
        await denied(reviewer, bearer("4"))
        assert len(api.calls) == 5

    @pytest.mark.parametrize("fault", [refuse(403, "Forbidden", "cannot create tokenreviews"), drop])
    async def test_a_failed_review_is_not_cached(
        self, api: FakeApiServer, reviewer: TokenReviewer, outcomes: list[tuple[str, bool]], fault: Any
    ) -> None:
        api.token_reviews[token()] = GOOD
        api.next_faults.append(fault)
        denial = await denied(reviewer, bearer())
        assert denial.transient
        assert "err:Failed to authenticate request. err:" in str(denial)
        await reviewer.authenticate([bearer()])
        assert outcomes == [("error", False), ("allowed", False)]


async def test_a_failed_review_names_the_reason(api: FakeApiServer, reviewer: TokenReviewer) -> None:
    api.next_faults.append(refuse(403, "Forbidden", "cannot create tokenreviews"))
    assert "403 Forbidden: cannot create tokenreviews" in str(await denied(reviewer, bearer()))


async def test_concurrent_reviews_of_one_token_are_one_request(
    api: FakeApiServer, reviewer: TokenReviewer
) -> None:
    api.token_reviews[token()] = GOOD
    api.answering.clear()
    agents = [asyncio.create_task(reviewer.authenticate([bearer()])) for _ in range(50)]
    await until(lambda: api.calls)
    api.answering.set()
    await asyncio.gather(*agents)
    assert len(api.calls) == 1


async def test_a_cancelled_caller_does_not_cancel_a_shared_review(
    api: FakeApiServer, reviewer: TokenReviewer
) -> None:
    api.token_reviews[token()] = GOOD
    api.answering.clear()
    first, second = (asyncio.create_task(reviewer.authenticate([bearer()])) for _ in range(2))
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
    denial = await denied(reviewer, bearer())
    assert denial.transient
    assert "timed out after 0.05s" in str(denial)
    api.answering.set()


async def test_agents_above_the_rate_limit_are_denied_at_once_instead_of_queued(
    api: FakeApiServer, clock: Clock
) -> None:
    """In Konnectivity the rate limit delayed TokenReviews by up to 11 minutes."""
    client = KubeClient(access_to(api), qps=0.09, burst=2)  # the third would wait for 11 s
    reviewer = TokenReviewer(client, "kube-system", "konnectivity-agent", AUDIENCE, clock)
    api.token_reviews.update({token(f"t{n}"): GOOD for n in range(2)})
    for number in range(2):
        await reviewer.authenticate([bearer(f"t{number}")])
    async with asyncio.timeout(3):
        denials = await asyncio.gather(*(denied(reviewer, bearer(f"late{n}")) for n in range(100)))
    assert all(denial.transient and "--kubeconfig-qps" in str(denial) for denial in denials)
    await reviewer.authenticate([bearer("t0")])  # cached: needs no request
    await reviewer.aclose()
    await client.aclose()


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"aud": ["https://kubernetes.default.svc"]}, "another audience"),
        ({"aud": "other"}, "another audience"),
        ({"aud": [[]]}, "another audience"),
        ({"aud": None, "sub": None}, "unexpected username format"),
        ({"sub": "system:serviceaccount:default:konnectivity-agent"}, 'from "default" namespace. Expected'),
        ({"sub": ["system:serviceaccount:kube-system:konnectivity-agent"]}, "is not a service account"),
        ({"iss": "https://attacker.example"}, "unexpected issuer"),
        ({"iss": ["https://kubernetes.default.svc.cluster.local"]}, "unexpected issuer"),
        ({"exp": NOW - 61}, "has expired"),
        ({"exp": "later"}, "invalid exp"),
        ({"exp": True}, "invalid exp"),
        ({"exp": 10**400}, "invalid exp"),
        ({"nbf": NOW + 61}, "not valid yet"),
        ({"nbf": []}, "invalid nbf"),
    ],
)
async def test_a_token_with_wrong_claims_is_denied_without_a_review(
    api: FakeApiServer, client: KubeClient, clock: Clock, claims: dict[str, Any], problem: str
) -> None:
    seen: list[str] = []
    reviewer = TokenReviewer(
        client,
        "kube-system",
        "konnectivity-agent",
        AUDIENCE,
        clock,
        lambda outcome, cached, seconds: seen.append(outcome),
        issuers=[ISSUER],
    )
    assert problem in str(await denied(reviewer, bearer(**claims)))
    assert not api.calls
    assert seen == ["invalid"]


@pytest.mark.parametrize(
    "text",
    ["t", "a.b", "a.b.c", "e30.e30.", "e30.e30", "e30.W10.c2ln", "W10.e30.c2ln", ".e30.c2ln",
     "e30.e30.c2ln.x", "e30.e30.c+ln", "e3.e30.c2ln", "/w.e30.c2ln", "W1tb" * 3000 + ".e30.c2ln"],
)  # fmt: skip
async def test_a_malformed_token_is_denied_without_a_review(
    api: FakeApiServer, reviewer: TokenReviewer, text: str
) -> None:
    assert "malformed token" in str(await denied(reviewer, f"Bearer {text}"))
    assert not api.calls


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW - 59},
        {"nbf": NOW + 59},
        {"aud": AUDIENCE},
        {"aud": ["a", AUDIENCE]},
        {"aud": None, "exp": None},
    ],
)
async def test_only_the_api_server_decides_about_right_claims(
    api: FakeApiServer, reviewer: TokenReviewer, claims: dict[str, Any]
) -> None:
    """With a minute for clocks that differ; tokens of Secrets have neither audience nor expiry."""
    api.token_reviews[token(**claims)] = GOOD
    await reviewer.authenticate([bearer(**claims)])


async def test_a_review_whose_callers_have_gone_is_cancelled(
    api: FakeApiServer, reviewer: TokenReviewer
) -> None:
    """It uses up no request if it was still waiting."""
    callers = [asyncio.create_task(reviewer.authenticate([bearer(f"gone{n}")])) for n in range(200)]
    await asyncio.sleep(0)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert reviewer._reviews == {}
    api.token_reviews[token()] = GOOD
    await reviewer.authenticate([bearer()])
    assert [call.body["spec"]["token"] for call in api.calls_to("POST", REVIEWS)] == [token()]


async def test_callers_after_a_cancelled_review_share_the_next_one(
    api: FakeApiServer, reviewer: TokenReviewer
) -> None:
    """The cancelled one ends when the next has begun."""
    api.token_reviews[token()] = GOOD
    gone = asyncio.create_task(reviewer.authenticate([bearer()]))
    await asyncio.sleep(0)
    gone.cancel()
    second = asyncio.create_task(reviewer.authenticate([bearer()]))
    await asyncio.gather(gone, return_exceptions=True)
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.gather(second, reviewer.authenticate([bearer()]))
    assert len(api.calls_to("POST", REVIEWS)) == 1


async def test_a_source_waits_for_one_review_of_each_other_source(api: FakeApiServer, clock: Clock) -> None:
    """However many reviews another source has waiting; those that cannot be reviewed in time are denied."""
    client = KubeClient(access_to(api), qps=50, burst=1, clock=clock)
    turns = RequestTurns(client.take_permit, client.qps, token_review.REVIEW_SECONDS_MAX)
    served: list[str] = []

    async def review(source: str) -> None:
        await turns.next(source)
        served.append(source)

    flood = [asyncio.create_task(review("192.0.2.66")) for _ in range(1000)]
    await until(lambda: sum(each.done() for each in flood) == 500)  # one was served, 499 were denied
    agent = asyncio.create_task(review("192.0.2.1"))
    await asyncio.sleep(0)
    for number in (2, 3):
        clock.now += 1 / client.qps
        await until(lambda number=number: len(served) == number)
    await agent
    assert served == ["192.0.2.66", "192.0.2.66", "192.0.2.1"]
    for each in flood:
        each.cancel()
    ends = await asyncio.gather(*flood, return_exceptions=True)
    assert sum(isinstance(end, KubeThrottled) for end in ends) == 500  # the agent took the place of one more
    turns.close()
    await client.aclose()


async def test_an_agents_token_is_reviewed_before_the_waiting_ones_of_another_source(
    api: FakeApiServer, clock: Clock
) -> None:
    """Ten forged tokens with the right claims came first."""
    client = KubeClient(access_to(api), qps=10, burst=1, clock=clock)
    reviewer = TokenReviewer(client, "kube-system", "konnectivity-agent", AUDIENCE, clock)
    api.token_reviews[token("agent")] = GOOD

    def reviewed() -> list[str]:
        return [call.body["spec"]["token"] for call in api.calls_to("POST", REVIEWS)]

    calls = [
        asyncio.create_task(reviewer.authenticate([bearer(f"forged-{number}")], "192.0.2.66"))
        for number in range(10)
    ]
    await until(lambda: len(reviewed()) == 1)
    calls.append(asyncio.create_task(reviewer.authenticate([bearer("agent")], "192.0.2.1")))
    await asyncio.sleep(0)
    for number in (2, 3):
        clock.now += 1 / client.qps
        await until(lambda number=number: len(reviewed()) == number)
    assert token("agent") in reviewed()
    await calls[-1]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await reviewer.aclose()
    await client.aclose()


async def test_closing_cancels_running_reviews(api: FakeApiServer, reviewer: TokenReviewer) -> None:
    api.answering.clear()
    review = asyncio.create_task(reviewer.authenticate([bearer()]))
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
    secret = token("secret")
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
