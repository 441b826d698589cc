"""Attacks by an agent with valid credentials: on other nodes' traffic, and on the server."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from bootbridge.proxy_server.agent_token import PROVABLE_TEXT
from bootbridge.trust.authority import Authority
from bootbridge.tunnel.agent_credentials import REVOKED_TEXT
from bootbridge.wire import frames as f
from tests.attacks.floods import connect_headers
from tests.attacks.test_network_peer import (
    ANSWER,
    DESCRIPTORS,
    FRAME_KINDS,
    REASONS,
    SECONDS,
    flood_once,
    target,
)
from tests.support.fake_api_server import ApiThread, FakeApiServer
from tests.support.process_endpoints import Endpoint, HttpEndpoint, echo
from tests.support.process_program import until
from tests.support.process_tunnels import RefusedDialError, dial, fetch, receive
from tests.support.token_mode import AGENT, agent_token, token_agent_flags, token_server
from tests.support.tunnel_programs import Agent, Programs, Server

RETIRE_SECONDS = 60.0
# Above the time that the calls beside a flood take on a slow machine.
FLOOD_SECONDS_MAX = 120
VICTIM = "127.0.0.1"
ROUTING = {"proxy-strategies": "destHost,cidr,defaultRoute"}
# What the attacker advertises, and what the victim advertises.
CLAIMS = [
    (f"ipv4={VICTIM}", f"ipv4={VICTIM}"),
    (f"host={VICTIM}", f"ipv4={VICTIM}"),
    (f"host=%3A%3Affff%3A{VICTIM}", f"ipv4={VICTIM}"),
    (f"cidr={VICTIM}/32", "cidr=127.0.0.0/29"),
    (f"cidr=%3A%3Affff%3A{VICTIM}/128", "cidr=127.0.0.0/29"),
    ("cidr=0.0.0.0/0&cidr=::/0", "default-route=true"),
]


def start_agent(programs: Programs, server: Server, name: str, identifiers: str, **flags: object) -> Agent:
    """Starts an agent and waits until the server has admitted it."""
    before = server.metric("ready_backend_connections")
    agent = programs.agent(
        server, flags={"agent-id": name, "agent-identifiers": identifiers, **_flags(flags)}
    )
    server.wait_for_agents(int(before) + 1)
    return agent


def _flags(flags: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "-"): value for name, value in flags.items()}


def dials(agent: Agent) -> float:
    return agent.metric("stream_packets_total", packet_type="DIAL_REQ", segment="to_agent")


def assert_reaches(server: Server, address: str) -> None:
    tunnel = dial(server, address)
    tunnel.send(b"ping")
    assert receive(tunnel, 4) == b"ping"
    tunnel.close()


@pytest.mark.parametrize(("claim", "own"), CLAIMS)
def test_an_agent_cannot_take_the_dials_of_another_node(
    programs: Programs, endpoint: Callable[..., Endpoint], claim: str, own: str
) -> None:
    """Each agent has a certificate for its own addresses: other claims are ignored, logged and counted."""
    server = programs.server(flags=ROUTING | {"agent-identifier-proof": "certificate"})
    issue = programs.certificates.issue_agent
    attacker = start_agent(programs, server, "attacker", claim, **issue("attacker", ["127.0.0.9"]))
    victim = start_agent(programs, server, "victim", own, **issue("victim", [VICTIM, "cidr:127.0.0.0/29"]))
    assert_reaches(server, endpoint(echo).address)
    assert (dials(attacker), dials(victim)) == (0, 1)
    assert server.metric("ignored_identifiers_total") == len(claim.split("&"))
    server.wait_for_log("agent identifiers ignored")
    ignored = {agent["id"]: agent["ignoredIdentifiers"] for agent in server.admin.status()["agents"]}
    assert ignored == {"attacker": len(claim.split("&")), "victim": 0}


def test_an_agent_cannot_advertise_outside_the_allow_lists(
    programs: Programs, endpoint: Callable[..., Endpoint]
) -> None:
    """With a shared certificate, no agent receives dials for destinations outside --agent-cidrs."""
    allowed = {"agent-cidrs": "10.0.0.0/8,fd00::/8", "agent-hosts": "*.example.com"}
    server = programs.server(flags=ROUTING | allowed | {"agent-default-route": "false"})
    claims = f"ipv4={VICTIM}&cidr=0.0.0.0/0&cidr=::/0&host=example.com&default-route=true"
    attacker = start_agent(programs, server, "attacker", claims)
    with pytest.raises(RefusedDialError):
        dial(server, endpoint(echo).address)
    assert dials(attacker) == 0
    assert server.metric("ignored_identifiers_total") == 5


@pytest.fixture
def kube(programs: Programs) -> Iterator[ApiThread]:
    thread = ApiThread(FakeApiServer(programs.folder))
    yield thread
    thread.close()


def token_of(kube: ApiThread, pod: str, node: str, host_ip: str, pod_ip: str, seconds: float = 3600) -> str:
    """Creates a pod of the agents, and returns the token that the kubelet would mount into it."""
    claims = {
        "sub": "system:serviceaccount:agents:default",
        "exp": time.time() + seconds,
        "kubernetes.io": {"namespace": "agents", "pod": {"name": pod, "uid": f"uid-of-{pod}"}},
    }
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in ({}, claims)]
    token = b".".join([*parts, b"c2ln"]).decode()
    found = {
        "metadata": {"name": pod, "namespace": "agents", "uid": f"uid-of-{pod}"},
        "spec": {"nodeName": node},
        "status": {"hostIP": host_ip, "podIP": pod_ip},
    }
    kube.do(lambda: kube.api.put(f"/api/v1/namespaces/agents/pods/{pod}", found))
    kube.do(lambda: kube.api.bearer_tokens.add(token))
    return token


def token_flag(programs: Programs, name: str, token: str) -> dict[str, object]:
    path = programs.folder / f"{name}.token"
    path.write_text(token)
    return {"service_account_token_path": path}


def token_proof(kube: ApiThread) -> dict[str, object]:
    return {
        "agent-identifier-proof": "token",
        "agent-namespace": "agents",
        "agent-service-account": "default",
        "agent-proof-kubeconfig": kube.kubeconfig,
        "node-cidr-mask-size-ipv4": 24,
    }


@pytest.mark.parametrize(
    ("claim", "own"),
    [
        ("ipv4=127.0.0.1", "ipv4=127.0.0.1"),
        ("host=victim", "host=victim&ipv4=127.0.0.1"),
        ("cidr=127.0.0.1/32", "cidr=127.0.0.9/24"),
        ("cidr=127.0.0.0/8", "default-route=true"),
    ],
)
def test_an_agent_with_the_shared_certificate_serves_only_its_own_node(
    programs: Programs, kube: ApiThread, endpoint: Callable[..., Endpoint], claim: str, own: str
) -> None:
    """Its token shows its pod; only name and addresses of that pod's node count."""
    server = programs.server(flags=ROUTING | token_proof(kube))
    token = token_of(kube, "agent-1", "attacker", "127.0.2.1", "127.0.2.9")
    attacker = start_agent(programs, server, "attacker", claim, **token_flag(programs, "attacker", token))
    token = token_of(kube, "agent-2", "victim", "127.0.0.1", "127.0.0.9")
    victim = start_agent(programs, server, "victim", own, **token_flag(programs, "victim", token))
    assert_reaches(server, endpoint(echo).address)
    assert (dials(attacker), dials(victim)) == (0, 1)
    assert server.metric("ignored_identifiers_total") == 1
    assert token not in server.log


def test_an_agent_without_a_valid_token_proves_no_node(
    programs: Programs, kube: ApiThread, endpoint: Callable[..., Endpoint]
) -> None:
    """A forged token, or none: only the default route is left, so that the tunnel still works."""
    server = programs.server(flags=ROUTING | token_proof(kube))
    forged = token_of(kube, "agent-2", "victim", "127.0.0.1", "127.0.0.9")
    kube.do(lambda: kube.api.bearer_tokens.discard(forged))
    claims = "ipv4=127.0.0.1&cidr=127.0.0.0/24&host=victim"
    attackers = [
        start_agent(programs, server, "forger", claims, **token_flag(programs, "forger", forged)),
        start_agent(programs, server, "tokenless", claims),
    ]
    with pytest.raises(RefusedDialError):
        dial(server, endpoint(echo).address)
    start_agent(programs, server, "other", "default-route=true")
    assert_reaches(server, endpoint(echo).address)
    assert [dials(agent) for agent in attackers] == [0, 0]
    server.wait_for_log("agent node not proved")
    assert forged not in server.log


def test_an_agent_that_was_not_proved_is_proved_later(
    programs: Programs, kube: ApiThread, endpoint: Callable[..., Endpoint]
) -> None:
    """The API server was not ready when it connected. Its dials do not stay on the default route, which any
    agent may advertise."""
    token = token_of(kube, "agent-1", "victim", VICTIM, "127.0.0.9")
    kube.do(lambda: kube.api.bearer_tokens.discard(token))  # as an API server without its etcd
    server = programs.server(flags=ROUTING | token_proof(kube))
    start_agent(programs, server, "victim", f"ipv4={VICTIM}", **token_flag(programs, "victim", token))
    server.wait_for_log("agent node not proved")
    with pytest.raises(RefusedDialError):
        dial(server, endpoint(echo).address)
    kube.do(lambda: kube.api.bearer_tokens.add(token))
    until(lambda: proved(server) == [f"ipv4={VICTIM}"], "the agent is proved", RETIRE_SECONDS)
    assert_reaches(server, endpoint(echo).address)
    assert server.metric("retired_agents_total", reason=PROVABLE_TEXT) == 1


def proved(server: Server, agents_max: int = 100) -> list[str]:
    """Returns the identifiers that count, of all agents."""
    status = json.loads(server.admin.get(f"/status?agents_limit={agents_max}")[1])
    return [each for agent in status["agents"] for each in agent["identifiers"]]


def test_an_agent_cannot_outlive_its_pod(
    programs: Programs, kube: ApiThread, endpoint: Callable[..., Endpoint]
) -> None:
    """As on an evicted node: its open connections end, and it proves nothing any more."""
    server = programs.server(flags=ROUTING | token_proof(kube))
    token = token_of(kube, "agent-1", "node1", "127.0.0.1", "127.0.0.9")
    start_agent(programs, server, "a", "ipv4=127.0.0.1", **token_flag(programs, "a", token))
    caller = dial(server, endpoint(echo).address)
    caller.sock.settimeout(RETIRE_SECONDS)
    kube.do(lambda: kube.api.remove("/api/v1/namespaces/agents/pods/agent-1"))
    with suppress(ConnectionResetError):
        assert caller.recv(1) == b"", "the server ends the open connection"
    caller.close()
    assert server.metric("retired_agents_total", reason=REVOKED_TEXT) == 1
    with pytest.raises(RefusedDialError):
        dial(server, endpoint(echo).address)


def disconnected(server: Server, reason: str) -> bool:
    """Whether the server has ended a connection for this reason; our own agent would also leave by itself."""
    return any("agent disconnected" in line and reason in line for line in server.log.splitlines())


def test_an_agent_cannot_outlive_its_token(programs: Programs, kube: ApiThread) -> None:
    """Its connection ends at the token's expiry, and it returns with the token that its file then has."""
    server = programs.server(flags=token_proof(kube))
    short = token_of(kube, "agent-1", "node1", "127.0.0.1", "127.0.0.9", seconds=12)
    start_agent(programs, server, "a", "", **token_flag(programs, "a", short))
    until(lambda: disconnected(server, "token expired"), "the server ends its connection", RETIRE_SECONDS)
    token_flag(programs, "a", token_of(kube, "agent-1", "node1", "127.0.0.1", "127.0.0.9"))
    server.wait_for_agents(1, RETIRE_SECONDS)
    assert server.metric("retired_agents_total", reason="token expired") == 1


def test_an_agent_cannot_outlive_its_reviewed_token(programs: Programs, kube: ApiThread) -> None:
    """In token mode without certificates: the API server's review of it is made only when it connects."""
    server = token_server(programs, kube)
    short = agent_token("short", exp=int(time.time()) + 15)
    kube.api.token_reviews[short] = AGENT
    programs.agent(server, flags=token_agent_flags(programs, short))
    server.wait_for_agents(1)
    until(lambda: disconnected(server, "token expired"), "the server ends its connection", RETIRE_SECONDS)
    assert server.metric("retired_agents_total", reason="token expired") == 1


def test_claims_of_two_agents_are_visible(programs: Programs) -> None:
    """Without a bound, as with the original, an overlap is logged, counted and in /status."""
    server = programs.server(flags=ROUTING)
    server.wait_for_log("agents may advertise any destination")
    start_agent(programs, server, "victim", "cidr=10.1.0.0/16&host=node1&default-route=true")
    assert server.admin.status()["overlappingIdentifiers"] == []
    start_agent(programs, server, "attacker", "cidr=10.1.2.0/24&host=NODE1&default-route=true")
    assert server.admin.status()["overlappingIdentifiers"] == [
        {"identifier": "host=node1", "agent": "victim", "other": "attacker"},
        {"identifier": "cidr=10.1.0.0/16", "agent": "victim", "other": "attacker"},
        {"identifier": "host=node1", "agent": "attacker", "other": "victim"},
        {"identifier": "cidr=10.1.2.0/24", "agent": "attacker", "other": "victim"},
    ]
    assert server.metric("overlapping_identifiers_total") == 2
    until(lambda: server.log.count("agent identifiers overlap") == 2, "both overlaps are logged")


@pytest.mark.interop  # the Go agent: ours checks its own flags
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"agent-identifiers": "&".join(f"ipv4=10.0.0.{n}" for n in range(65))}, "more than 64"),
        ({"agent-identifiers": f"host={'x' * 300}"}, "more than 272 characters"),
        ({"agent-id": "x" * 257}, "more than 256 characters"),
    ],
)
def test_an_agent_cannot_send_unbounded_metadata(
    programs: Programs, flags: dict[str, str], problem: str
) -> None:
    """Too many or too long identifiers and ids are refused before they are parsed or logged."""
    server = programs.server(flags=ROUTING)
    programs.launch_agent(server, "go", flags=flags)
    until(lambda: problem in server.log, "the server refuses the agent")
    assert server.metric("ready_backend_connections") == 0
    assert max(map(len, server.log.splitlines())) < 1000


@pytest.mark.parametrize("kind", ["ours", pytest.param("go", marks=pytest.mark.interop)])
def test_an_agent_cannot_outlive_its_certificate(programs: Programs, kind: str) -> None:
    """Its connection ends at notAfter, and it returns with a new certificate."""
    server = programs.server()
    short = programs.certificates.issue_agent("short", validity=timedelta(seconds=15))
    agent = programs.agent(server, kind, flags={"agent-id": "short", **short})
    server.wait_for_agents(1)
    until(lambda: "certificate expired" in server.log, "the server retires the agent", RETIRE_SECONDS)
    server.wait_for_agents(0, RETIRE_SECONDS)
    assert server.metric("retired_agents_total", reason="certificate expired") == 1
    programs.certificates.issue_agent("short")
    if kind == "go":  # it reads its certificate once
        agent.kill()
        programs.agent(server, kind, flags={"agent-id": "short", **short})
    server.wait_for_agents(1, RETIRE_SECONDS)


def test_an_agent_cannot_outlive_its_ca(programs: Programs) -> None:
    """When its CA is removed from --cluster-ca-cert, its connection ends; agents of the new CA stay."""
    both = programs.folder / "both-ca.crt"
    old = (programs.folder / "agents-ca.crt").read_bytes()
    new = Authority.create("new agents")
    new.issue_client("new").write(programs.folder, "new")
    both.write_bytes(old + new.cert_pem)
    server = programs.server(flags={"cluster-ca-cert": str(both)})
    start_agent(programs, server, "old", "")
    path = programs.certificates.path
    start_agent(programs, server, "new", "", agent_cert=path("new.crt"), agent_key=path("new.key"))
    both.write_bytes(new.cert_pem)
    server.wait_for_agents(1, RETIRE_SECONDS)
    assert [agent["id"] for agent in server.admin.status()["agents"]] == ["new"]
    server.wait_for_log("CA removed from --cluster-ca-cert")
    assert server.log.count("agent credentials ended") == 1


def test_texts_of_an_agent_do_not_become_html_of_the_status_page(programs: Programs) -> None:
    """Its id and identifiers are text there, and the page forbids scripts that are not its own."""
    server = programs.server()
    hostile = "<script>alert(1)</script>\"'&"
    start_agent(programs, server, hostile, "host=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    assert server.admin.status()["agents"][0]["id"] == hostile
    status, page = server.admin.get("/")
    assert status == 200
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;" in page
    assert "host=&lt;img src=x onerror=alert(1)&gt;" in page
    assert "<script>" not in page
    assert "<img" not in page


@pytest.mark.parametrize("kind", [*FRAME_KINDS, "identifiers", "late-data", "other-methods"])
def test_a_flood_of_an_agent_ends_only_its_own_connection(
    programs: Programs, web: HttpEndpoint, kind: str
) -> None:
    """Each kind of frame has a budget; exceeding it ends the connection with ENHANCE_YOUR_CALM."""
    server = programs.server()
    programs.agent(server)
    server.wait_until_ready()
    report = flood_once(kind, target(server, certificate=True))
    assert report.goaways == {"ENHANCE_YOUR_CALM": 1}
    server.wait_for_log(REASONS.get(kind, ""))
    server.wait_for_agents(1)
    assert fetch(server, web.address) == ANSWER


def test_admitted_connections_leave_descriptors_to_the_frontend(
    programs: Programs, endpoint: Callable[..., Endpoint]
) -> None:
    """More connections than the server has file descriptors, each with an admitted stream."""
    server = programs.server(flags=ROUTING, descriptors_max=DESCRIPTORS)
    start_agent(programs, server, "victim", f"ipv4={VICTIM}")
    with ExitStack() as stack:
        for number in range(DESCRIPTORS + 44):
            try:
                sock = stack.enter_context(target(server, certificate=True).shake_hands())
                sock.sendall(f.PREFACE + f.settings({}) + connect_headers(1, f"attacker-{number}"))
                sock.recv(1)
            except OSError:
                break  # the server accepts no more
        until(lambda: evicted(server) > 0, "the server closes connections of agents")
        assert_reaches(server, endpoint(echo).address)
        assert server.health.get("/healthz")[0] == 200
        assert server.descriptors() < DESCRIPTORS


def test_an_agent_with_many_connections_does_not_keep_other_agents_out(
    programs: Programs, endpoint: Callable[..., Endpoint]
) -> None:
    """It has all file descriptors that agents may take; an agent behind another address is admitted."""
    server = programs.server(flags=ROUTING, descriptors_max=DESCRIPTORS)
    to = replace(target(server, certificate=True), source="127.0.0.66")
    with ExitStack() as stack:
        number = 0
        while not evicted(server):
            number += 1
            with suppress(OSError):  # the server accepts no more
                sock = stack.enter_context(to.shake_hands())
                sock.sendall(f.PREFACE + f.settings({}) + connect_headers(1, f"attacker-{number}"))
                sock.recv(1)
        programs.agent(server, flags={"agent-id": "victim", "agent-identifiers": f"ipv4={VICTIM}"})
        until(lambda: f"ipv4={VICTIM}" in proved(server, 1000), "the victim is admitted", SECONDS)
        assert_reaches(server, endpoint(echo).address)


def evicted(server: Server) -> float:
    return server.metric("agent_connections_evicted_total", reason="file descriptors")


def test_memory_stays_bounded_under_a_flood(programs: Programs, web: HttpEndpoint) -> None:
    """Each connection that a flood ends leaves nothing behind, although up to 256 KiB of it were unread."""
    server = programs.server()
    programs.agent(server)
    server.wait_until_ready()
    # Each from another address: the server would delay the next handshakes of the same one.
    to = [replace(target(server, certificate=True), source=f"127.0.1.{number}") for number in range(70)]
    for each in to[:10]:
        flood_once("ping", each)
    before = server.rss_bytes()
    for each in to[10:]:
        flood_once("ping", each)
    assert server.rss_bytes() - before < 5 * 1024 * 1024
    assert fetch(server, web.address) == ANSWER


@pytest.mark.parametrize("kind", ["small-frames", "small-packets"])
def test_callers_are_served_beside_an_agent_that_sends_the_smallest_frames(
    programs: Programs, web: HttpEndpoint, kind: str
) -> None:
    """They transfer something, so no budget ends them. What they cause is bounded, and callers get answers;
    `tests/runtime/test_input_turns.py` has how little of them is handled at a time."""
    server = programs.server(flags=ROUTING)
    start_agent(programs, server, "sound", "ipv4=127.0.0.1")
    before = server.rss_bytes()
    with flooding(server, kind):
        server.wait_for_agents(2)
        for _ in range(20):
            assert fetch(server, web.address) == ANSWER
        assert server.rss_bytes() - before < 10 * 1024 * 1024


@contextmanager
def flooding(server: Server, kind: str) -> Iterator[None]:
    """Floods from another process until the end of the block."""
    path = server.certificates.path
    argv = [sys.executable, "-m", "tests.attacks.floods", kind, f"127.0.0.1:{server.agent_port}"]
    argv += [f"--ca={path('agents-ca.crt')}", f"--cert={path('agent.crt')}", f"--key={path('agent.key')}"]
    attacker = subprocess.Popen([*argv, f"--seconds={FLOOD_SECONDS_MAX}"], stdout=subprocess.PIPE, text=True)
    try:
        yield
        assert attacker.poll() is None, "the flood has ended"
    finally:
        attacker.kill()
        attacker.communicate()
