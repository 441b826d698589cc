"""Agents whose credentials are still being checked: their packets have no effect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bootbridge.tunnel.proxy_core import Authenticated
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from tests.support.sim_script import ServerHarness


class Review:
    """A token review that lasts until the test ends it."""

    def __init__(self) -> None:
        self.done: Authenticated | None = None
        self.cancelled = False

    def __call__(self, authorization: list[str], source: str, done: Authenticated) -> Callable[[], None]:
        self.done = done

        def cancel() -> None:
            self.cancelled = True

        return cancel

    def allow(self) -> None:
        assert self.done is not None
        self.done(None, None)


@pytest.mark.parametrize(
    "packets",
    [
        [p.DialResponse("", 1, 1)],
        [p.Data(7, b"x")],
        [p.CloseResponse("", 1)],
        [p.CloseDial(1)],
        [p.Drain(), p.Drain()],
    ],
)
def test_a_packet_before_admission_ends_the_stream(packets: list[p.Packet]) -> None:
    """Without an answer, a log line or a count; the review is cancelled, and its late result ignored."""
    review = Review()
    with ServerHarness(authenticate=review) as harness:
        stranger = harness.agent().send(*packets)
        assert stranger.status == grpc.UNKNOWN
        stranger.expect_nothing()
        assert review.cancelled
        review.allow()
        harness.settle()
        assert len(harness.core.agent_registry) == 0
        assert harness.failures("unrecognized_response") == 0
        assert harness.event_log.lines == []


def test_an_agent_that_is_stopped_while_it_connects_is_the_last_resort() -> None:
    """Our own agent sends DRAIN when it is stopped, also before the answer to its call."""
    review = Review()
    with ServerHarness(authenticate=review) as harness:
        stopping = harness.agent("stopping").send(p.Drain())
        review.allow()
        other = harness.agent("other")
        review.allow()
        harness.connect_caller().connect()
        other.expect_one(p.DialRequest)
        stopping.expect_nothing()
