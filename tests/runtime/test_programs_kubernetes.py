"""Tokens and leases end to end: real programs with a fake API server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from tests.support.fake_api_server import LEASES, REVIEWS, ApiThread, FakeApiServer
from tests.support.process_endpoints import HttpEndpoint
from tests.support.process_program import free_port, until
from tests.support.process_tunnels import fetch
from tests.support.token_mode import AGENT, AUDIENCE, agent_token, token_agent_flags, token_server
from tests.support.tunnel_programs import Programs

HELLO = b"hello from the endpoint"
GOOD = agent_token("good")
LABELS = {"k8s-app": "konnectivity-server"}


@pytest.fixture
def kube(programs: Programs) -> Iterator[ApiThread]:
    thread = ApiThread(FakeApiServer(programs.folder))
    yield thread
    thread.close()


# --- tokens


def test_an_agent_is_authenticated_by_its_token(
    programs: Programs, kube: ApiThread, web: HttpEndpoint
) -> None:
    """It has no client certificate."""
    kube.api.token_reviews[GOOD] = AGENT
    server = token_server(programs, kube)
    programs.agent(server, flags=token_agent_flags(programs, GOOD))
    server.wait_until_ready()
    assert fetch(server, web.address) == HELLO
    (review, *_) = kube.api.calls_to("POST", REVIEWS)
    assert review.body["spec"] == {"token": GOOD, "audiences": [AUDIENCE]}
    assert server.metric("token_reviews_total", result="authenticated") == 1


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        ({"authenticated": False}, "service account jwt not valid"),
        (
            {"authenticated": True, "user": {"username": "system:serviceaccount:default:konnectivity-agent"}},
            "namespace",
        ),
        ({"error": "token has expired"}, "token has expired"),
    ],
)
def test_a_denied_token_is_explained_to_both_operators(
    programs: Programs, kube: ApiThread, verdict: dict[str, object], reason: str
) -> None:
    """The reason is in the logs of server and agent; the token is in neither."""
    secret = agent_token("secret")
    kube.api.token_reviews[secret] = verdict
    server = token_server(programs, kube)
    agent = programs.agent(server, flags=token_agent_flags(programs, secret))
    server.wait_for_log(reason)
    agent.wait_for_log(reason)
    assert server.health.get("/readyz")[0] == 500
    assert secret not in server.log + agent.log


def test_an_agent_without_a_token_is_refused(programs: Programs, kube: ApiThread) -> None:
    server = token_server(programs, kube)
    agent = programs.agent(server, flags={"agent-cert": None, "agent-key": None})
    agent.wait_for_log("Authentication context was not found in metadata")
    assert server.metric("ready_backend_connections") == 0


def test_a_missing_token_file_is_retried(programs: Programs, kube: ApiThread) -> None:
    """The agent neither exits nor connects without a token."""
    kube.api.token_reviews[GOOD] = AGENT
    port = free_port()
    flags = token_agent_flags(programs, GOOD)
    agent = programs.agent(port, flags=flags)
    path = Path(str(flags["service-account-token-path"]))
    path.unlink()
    agent.wait_for_log("--service-account-token-path: cannot read")
    server = token_server(programs, kube, **{"agent-port": port})
    path.write_text(GOOD)
    server.wait_until_ready()
    assert agent.alive


def test_token_reviews_are_cached(programs: Programs, kube: ApiThread) -> None:
    """Agents that reconnect cause no further review."""
    kube.api.token_reviews[GOOD] = AGENT
    server = token_server(programs, kube)
    for count in (1, 2, 3):
        programs.agent(server, flags=token_agent_flags(programs, GOOD))
        server.wait_for_agents(count)
    assert len(kube.api.calls_to("POST", REVIEWS)) == 1


def test_a_slow_token_review_does_not_delay_other_agents(
    programs: Programs, kube: ApiThread, web: HttpEndpoint
) -> None:
    first, second = agent_token("first"), agent_token("second")
    kube.api.token_reviews |= {first: AGENT, second: AGENT}
    server = token_server(programs, kube)
    programs.agent(server, flags=token_agent_flags(programs, first))
    server.wait_until_ready()
    kube.do(kube.api.answering.clear)
    programs.agent(server, flags=token_agent_flags(programs, second))
    until(lambda: len(kube.api.calls_to("POST", REVIEWS)) == 2, "the second review is under way")
    assert fetch(server, web.address) == HELLO
    kube.do(kube.api.answering.set)
    server.wait_for_agents(2)


# --- leases


def test_a_server_creates_its_lease_and_deletes_it_when_it_stops(programs: Programs, kube: ApiThread) -> None:
    flags = {"enable-lease-controller": True, "kubeconfig": kube.kubeconfig, "server-id": "server-one"}
    server = programs.server(flags=flags)
    until(lambda: kube.api.leases, "the lease is there")
    (lease,) = kube.api.leases.values()
    assert lease["metadata"]["labels"] == LABELS
    assert lease["spec"]["holderIdentity"] == "server-one"
    server.terminate()
    assert server.wait() == 0
    assert kube.api.leases == {}


def test_expired_leases_are_collected_and_counted(programs: Programs, kube: ApiThread) -> None:
    long_ago = "2020-01-01T00:00:00.000000Z"
    spec = {"leaseDurationSeconds": 30, "renewTime": long_ago, "acquireTime": long_ago}
    kube.do(lambda: kube.api.put_lease("dead-server", LABELS, holderIdentity="dead", **spec))
    server = programs.server(flags={"enable-lease-controller": True, "kubeconfig": kube.kubeconfig})
    until(lambda: "dead-server" not in kube.api.leases, "the dead server's lease is gone")
    until(lambda: server.metric("culled_leases_count") == 1, "it is counted")


def test_an_agent_counts_leases_and_follows_them(programs: Programs, kube: ApiThread) -> None:
    """A change of the leases changes the number of servers at once."""
    server = programs.server(flags={"server-count": 1})
    agent = programs.agent(server, flags={"count-server-leases": True, "kubeconfig": kube.kubeconfig})
    server.wait_until_ready()
    for number in range(3):
        kube.do(partial(kube.api.put_lease, f"server-{number}", LABELS, **valid_lease()))
    until(lambda: agent.metric("known_server_count") == 3, "three servers are known")
    kube.do(lambda: kube.api.remove_lease("server-2"))
    until(lambda: agent.metric("known_server_count") == 2, "two servers are known")
    assert kube.api.calls_to("GET", LEASES, watch="true") or kube.api.calls_to("GET", LEASES, watch="1")


def valid_lease() -> dict[str, object]:
    now = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": "x", "leaseDurationSeconds": 300, "acquireTime": now, "renewTime": now}


def test_servers_and_agents_find_each_other_by_leases(programs: Programs, kube: ApiThread) -> None:
    """Each server publishes itself; the agent connects to as many servers as there are leases."""
    flags = {"enable-lease-controller": True, "kubeconfig": kube.kubeconfig}
    first = programs.server(flags={**flags, "agent-bind-address": "127.0.0.1"})
    port = first.agent_port
    second = programs.server(
        flags={
            **flags,
            "agent-bind-address": "127.0.0.2",
            "agent-port": port,
            "uds-name": programs.folder / "2",
        }
    )
    counting = {"count-server-leases": True, "kubeconfig": kube.kubeconfig}
    agent = programs.agent(port, flags={"proxy-server-host": "127.0.0.1,127.0.0.2", **counting})
    agent.wait_for_servers(2)
    first.wait_until_ready()
    second.wait_until_ready()
    until(lambda: agent.metric("known_server_count") == 2, "the agent has counted both leases")


def test_an_unreachable_api_server_does_not_delay_the_start(programs: Programs, kube: ApiThread) -> None:
    """The tunnel becomes ready without leases."""
    kube.stop_listening()
    server = programs.server(flags={"enable-lease-controller": True, "kubeconfig": kube.kubeconfig})
    agent = programs.agent(server, flags={"count-server-leases": True, "kubeconfig": kube.kubeconfig})
    server.wait_until_ready()
    agent.wait_for_servers(1)
