"""Agents whose credentials have ended: no more dials, open connections may finish, then the stream ends."""

from __future__ import annotations

from math import inf

import pytest

from bootbridge.tunnel.agent_admission import RETIRED_SECONDS_MAX
from bootbridge.tunnel.agent_credentials import REVOKED_TEXT
from bootbridge.tunnel.allowed_identifiers import AllowedIdentifiers
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from tests.support.sim_script import ServerHarness

EXPIRED = "certificate expired"


class Credentials:
    """Valid until `ended` has a reason."""

    allowed: AllowedIdentifiers | None = None
    expires = inf
    node = ""

    def __init__(self) -> None:
        self.ended = ""

    def problem(self) -> str:
        return self.ended


def recheck(harness: ServerHarness) -> None:
    harness.core.recheck_agents()
    harness.settle()


def retired(harness: ServerHarness, reason: str = EXPIRED) -> float:
    return harness.metrics.retired_agents_total.labels(reason).value


@pytest.mark.parametrize("go_like", [False, True])
def test_an_idle_agent_ends_at_once(go_like: bool) -> None:
    """With a status that is an error, and counted once."""
    with ServerHarness() as harness:
        credentials = Credentials()
        agent = harness.agent(go_like=go_like, credentials=credentials)
        recheck(harness)
        assert harness.core.ready
        credentials.ended = EXPIRED
        recheck(harness)
        recheck(harness)
        assert agent.status == grpc.UNAUTHENTICATED
        assert len(harness.core.agent_registry) == 0
        assert retired(harness) == 1


@pytest.mark.parametrize("go_like", [False, True])
def test_open_connections_of_a_retired_agent_may_finish(go_like: bool) -> None:
    """It gets no new dial, even if no other agent can take it. GOAWAY would make a Go agent cut them."""
    with ServerHarness() as harness:
        credentials = Credentials()
        agent = harness.agent(go_like=go_like, credentials=credentials)
        running = harness.connect_route(agent)
        credentials.ended = EXPIRED
        recheck(harness)
        assert agent.stream.connection.peer_going_away != go_like
        assert not harness.core.ready
        harness.connect_caller().connect().expect_status(500)
        running.send(b"on")
        agent.expect(p.Data(1, b"on"))
        harness.after(RETIRED_SECONDS_MAX - 1)
        recheck(harness)
        running.send(b"on")
        agent.expect(p.Data(1, b"on")).send(p.CloseResponse("", 1))
        recheck(harness)
        assert agent.status == grpc.UNAUTHENTICATED


def test_a_retired_agent_ends_within_the_bound() -> None:
    """Its connections are reset, and the caller sees it."""
    with ServerHarness() as harness:
        credentials = Credentials()
        agent = harness.agent(credentials=credentials)
        harness.connect_route(agent)
        credentials.ended = EXPIRED
        recheck(harness)
        harness.after(RETIRED_SECONDS_MAX)
        recheck(harness)
        assert agent.status == grpc.UNAUTHENTICATED
        assert harness.core.route_count == 0


@pytest.mark.parametrize("go_like", [False, True])
def test_a_revoked_agent_ends_at_once_with_its_connections(go_like: bool) -> None:
    """The pod of its token was deleted: nothing of it may go on."""
    with ServerHarness() as harness:
        credentials = Credentials()
        agent = harness.agent(go_like=go_like, credentials=credentials)
        harness.connect_route(agent)
        credentials.ended = REVOKED_TEXT
        recheck(harness)
        assert agent.status == grpc.UNAUTHENTICATED
        assert harness.core.route_count == 0
        assert retired(harness, REVOKED_TEXT) == 1


def test_a_dial_sent_before_the_end_is_still_answered() -> None:
    with ServerHarness() as harness:
        credentials = Credentials()
        agent = harness.agent(credentials=credentials)
        caller = harness.connect_caller().connect()
        credentials.ended = EXPIRED
        recheck(harness)
        harness.accept(agent, 1)
        caller.expect_status(200)


def test_the_same_agent_with_new_credentials_takes_over() -> None:
    """While its old stream drains."""
    with ServerHarness() as harness:
        credentials = Credentials()
        old = harness.agent(credentials=credentials)
        harness.connect_route(old)
        credentials.ended = EXPIRED
        recheck(harness)
        new = harness.agent(credentials=Credentials())
        old.received.clear()
        harness.connect_caller().connect()
        new.expect_one(p.DialRequest)
        old.expect_nothing()


def test_ended_credentials_are_not_admitted_again() -> None:
    """A new stream on the same connection has the same credentials."""
    with ServerHarness() as harness:
        credentials = Credentials()
        credentials.ended = EXPIRED
        agent = harness.agent(credentials=credentials)
        assert agent.status == grpc.UNKNOWN
        assert len(harness.core.agent_registry) == 0


def test_an_agent_has_to_connect_again_at_the_maximum_age() -> None:
    """Also without any other end of its credentials."""
    with ServerHarness(agent_age_seconds=3600.0) as harness:
        agent = harness.agent()
        harness.after(3599)
        recheck(harness)
        assert harness.core.ready
        harness.after(1)
        recheck(harness)
        assert agent.status == grpc.UNAUTHENTICATED
        assert retired(harness, "maximum age reached") == 1
