"""Attacks by a network peer without credentials, on every port that it can reach."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import secrets
import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from bootbridge.join_api.instance import Role
from bootbridge.runtime.source_penalties import FREE_FAULTS
from bootbridge.trust.evidence import EvidenceRefused
from bootbridge.trust.evidence.tpm import TpmEvidence
from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from tests.attacks import floods
from tests.bootstrap.diagnose.ssh_node import Node, install_dir, needs_sshd
from tests.support.fake_api_server import REVIEWS, ApiThread, FakeApiServer
from tests.support.join_service_process import HOST, join_service, receive_frame, silent_peer
from tests.support.process_endpoints import HttpEndpoint
from tests.support.process_program import OURS, until
from tests.support.process_tunnels import fetch
from tests.support.software_tpm import SoftwareTpm
from tests.support.swtpm import NewChip
from tests.support.token_mode import AGENT, agent_token, token_agent_flags, token_server
from tests.support.tunnel_programs import Programs, Server

pytest_plugins = ["tests.support.swtpm"]


SECONDS = 60.0
ANSWER = b"hello from the endpoint"
# A flood ends earlier, with the first connection that the server closes.
FLOOD_SECONDS_MAX = 30.0
DESCRIPTORS = 256
IDLE_CONNECTIONS = 300
CONNECTIONS = DESCRIPTORS + 44
CALLS_PER_CONNECTION = 15
# More than reviews may wait, so that refused calls are repeated while others wait.
FLOOD_CONNECTIONS = 20
# Above the server's deadline of 30 s.
CLOSED_SECONDS_MAX = 60.0
# Above the 5 s for a request, below the 60 s between requests.
REQUEST_SECONDS_MAX = 40.0
FRAME_KINDS = {
    "rst": {"HEADERS", "RST_STREAM"},
    "ping": {"PING"},
    "settings": {"SETTINGS"},
    "settings-large": {"SETTINGS"},
    "window-update": {"WINDOW_UPDATE"},
    "priority": {"PRIORITY"},
    "empty-data": {"empty DATA", "DATA before admission"},
    "goaway": {"GOAWAY"},
    "unknown": {"unknown"},
    "invalid": {"invalid"},
    "small-data": {"DATA before admission"},
    "continuation": {"CONTINUATION"},
}

# What the log shows; one large frame must be enough, because each costs 0.28 s.
REASONS = {"settings-large": "SETTINGS frame too large"}


@pytest.fixture
def kube(programs: Programs) -> Iterator[ApiThread]:
    thread = ApiThread(FakeApiServer(programs.folder))
    yield thread
    thread.close()


def target(server: Server, *, certificate: bool = False) -> floods.Target:
    paths = server.certificates.path
    own = (paths("agent.crt"), paths("agent.key")) if certificate else ()
    return floods.Target("127.0.0.1", server.agent_port, floods.tls_context(paths("agents-ca.crt"), *own))


def hold(stack: ExitStack, port: int, count: int) -> list[socket.socket]:
    """Opens connections and sends nothing on them."""
    return [
        stack.enter_context(socket.create_connection(("127.0.0.1", port), floods.TIMEOUT_SECONDS))
        for _ in range(count)
    ]


def flood_once(kind: str, to: floods.Target) -> floods.Report:
    """Floods one connection until the server closes it."""
    report = floods.Report(kind)
    floods.send_frames(to, report, time.monotonic() + FLOOD_SECONDS_MAX)
    assert report.closed_by_server == 1, "the server let the flood go on"
    return report


@pytest.mark.parametrize("kind", FRAME_KINDS)
def test_a_flood_without_credentials_ends_before_it_costs_anything(
    programs: Programs, kube: ApiThread, web: HttpEndpoint, kind: str
) -> None:
    """In token mode, anyone can complete the TLS handshake. Each flood ends with ENHANCE_YOUR_CALM."""
    token = agent_token("good")
    kube.api.token_reviews[token] = AGENT
    server = token_server(programs, kube)
    programs.agent(server, flags=token_agent_flags(programs, token))
    server.wait_until_ready()
    report = flood_once(kind, target(server))
    assert report.goaways == {"ENHANCE_YOUR_CALM": 1}
    counted = [server.metric("frame_budgets_exceeded_total", frame=frame) for frame in FRAME_KINDS[kind]]
    assert sum(counted) == 1
    server.wait_for_log("frame budget exceeded")
    server.wait_for_log(REASONS.get(kind, ""))
    assert fetch(server, web.address) == ANSWER


def test_a_flooding_source_waits_and_an_agent_behind_its_address_is_still_admitted(
    programs: Programs, web: HttpEndpoint
) -> None:
    """The next handshakes of the source are delayed, so that they cost little; none is refused."""
    server = programs.server()
    with ExitStack() as stack:
        for _ in range(2 * FREE_FAULTS):  # as in `hellos`: the server signs, and the peer leaves
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.agent_port)))
            sock.sendall(b"\x16\x03\x01\x00\x04junk")
    until(lambda: server.metric("agent_handshakes_delayed_total") > 0, "a handshake waits", SECONDS)
    programs.agent(server)
    server.wait_until_ready()
    assert fetch(server, web.address) == ANSWER
    server.wait_for_log("agent handshake delayed")


def test_after_a_flood_the_next_handshake_of_its_source_waits(programs: Programs) -> None:
    """One connection that was closed for a flood is enough, also if its handshake succeeded."""
    server = programs.server()
    flooding = target(server, certificate=True)
    flood_once("ping", flooding)
    until(lambda: server.metric("frame_budgets_exceeded_total", frame="PING") == 1, "it was counted", SECONDS)
    assert server.metric("agent_handshakes_delayed_total") == 0
    flooding.shake_hands().close()
    assert server.metric("agent_handshakes_delayed_total") == 1


def test_packets_before_admission_have_no_effect(programs: Programs, kube: ApiThread) -> None:
    """In token mode, they arrive before the token is reviewed: they would fill the log, and cause answers."""
    server = token_server(programs, kube)
    packets: list[p.Packet] = [p.Drain()] * 100
    packets += [p.DialResponse("", number, number) for number in range(1, 101)]
    with target(server).shake_hands() as sock:
        authorization = (("authorization", f"Bearer {agent_token('forged')}"),)
        sent = f.PREFACE + f.settings({}) + floods.connect_headers(1, metadata=authorization)
        for packet in packets:
            message = p.encode(packet)
            sent += f.frame(f.DATA, 0, 1, grpc.message_prefix(len(message)) + message)
        assert len(sent) < 16384, "one TLS record, so that all of it is read before the review ends"
        sock.sendall(sent)
        frames = until_stream_ends(sock)
    assert frames.count(f.DATA) == 0, "no CLOSE_REQ for the connections of the stranger"
    assert server.metric("dial_failure_count", reason="unrecognized_response") == 0
    with target(server).shake_hands() as sock:  # the next line of the log
        sock.sendall(f.PREFACE + f.settings({}) + floods.connect_headers(1))
        server.wait_for_log("agent refused")
    assert "agent draining" not in server.log


def until_stream_ends(sock: ssl.SSLSocket, stream: int = 1) -> list[int]:
    """Reads until the server ends a stream; returns the types of the frames on it."""
    kinds: list[int] = []
    received = bytearray()
    sock.settimeout(floods.TIMEOUT_SECONDS)
    while True:
        while len(received) < f.HEADER_SIZE or len(received) < f.HEADER_SIZE + _size_of(received):
            if not (data := sock.recv(65536)):
                raise ConnectionResetError
            received += data
        _, _, kind, flags, stream_id = f.HEADER.unpack_from(received)
        del received[: f.HEADER_SIZE + _size_of(received)]
        if stream_id == stream:
            kinds.append(kind)
            if kind == f.RST_STREAM or flags & f.END_STREAM:
                return kinds


def _size_of(received: bytearray) -> int:
    high, low, *_ = f.HEADER.unpack_from(received)
    return int(high << 16 | low)


class TokenFlood:
    """Calls Connect with one token after the other, on several connections at a time, until it is stopped."""

    def __init__(self, to: floods.Target, source: str, token: Callable[[], str], *, reset: bool) -> None:
        self._to, self._source, self._token, self._reset = to, source, token, reset
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(FLOOD_CONNECTIONS)]
        self._calls = itertools.count()
        self.calls = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._connect() as sock:
                    self._call(sock)
            except OSError:
                pass  # the server closed the connection

    def _connect(self) -> ssl.SSLSocket:
        address = (self._to.host, self._to.port)
        sock = socket.create_connection(address, floods.TIMEOUT_SECONDS, (self._source, 0))
        assert self._to.tls is not None
        return self._to.tls.wrap_socket(sock, server_hostname=self._to.host)

    def _call(self, sock: ssl.SSLSocket) -> None:
        """Makes as many calls as one connection may, one at a time; each is reset, or ends with a refusal."""
        sock.sendall(f.PREFACE + f.settings({}))
        for stream_id in range(1, 2 * CALLS_PER_CONNECTION, 2):
            authorization = (("authorization", f"Bearer {self._token()}"),)
            sent = floods.connect_headers(stream_id, metadata=authorization)
            if self._reset:
                sent += f.rst_stream(stream_id, f.CANCEL)  # in the same TLS record: they are read together
            sock.sendall(sent)
            self.calls = next(self._calls)
            if self._stopped.is_set():
                return
            if not self._reset:
                until_stream_ends(sock, stream_id)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def random_token() -> str:
    return secrets.token_urlsafe(600)


def forged_token() -> str:
    """With every claim of a real one, each another."""
    return agent_token(f"forged-{secrets.token_hex(8)}")


@pytest.mark.parametrize(
    ("tokens", "source", "reset"),
    [
        pytest.param(random_token, "127.0.0.1", True, id="random-reset"),
        pytest.param(random_token, "127.0.0.1", False, id="random"),
        pytest.param(forged_token, "127.0.0.1", True, id="forged-reset"),
        pytest.param(forged_token, "127.0.0.2", False, id="forged-from-another-source"),
    ],
)
def test_a_flood_of_tokens_does_not_lock_agents_out(
    programs: Programs,
    kube: ApiThread,
    web: HttpEndpoint,
    tokens: Callable[[], str],
    source: str,
    reset: bool,
) -> None:
    """A new agent's token is reviewed during the flood, although one review per second is permitted."""
    token = agent_token("good")
    kube.api.token_reviews[token] = AGENT
    server = token_server(programs, kube, **{"kubeconfig-qps": 1, "kubeconfig-burst": 1})
    flood = TokenFlood(target(server), source, tokens, reset=reset)
    flood.start()
    try:
        # As many as the server admits without delay.
        until(lambda: flood.calls >= CALLS_PER_CONNECTION * FREE_FAULTS, "the flood has begun", SECONDS)
        before = flood.calls
        programs.agent(server, flags=token_agent_flags(programs, token))
        server.wait_until_ready()
        assert fetch(server, web.address) == ANSWER
        until(lambda: flood.calls > before, "the flood goes on", SECONDS)
    finally:
        flood.stop()
    reviewed = [call.body["spec"]["token"] for call in kube.api.calls_to("POST", REVIEWS)]
    assert token in reviewed
    if tokens is random_token or reset:
        assert set(reviewed) == {token}
    if tokens is random_token and not reset:
        assert server.metric("token_reviews_total", result="invalid") > 0


def wait_until_accepted(server: Server) -> None:
    """Waits until the server has accepted all connections of the attack: before, they cost it nothing."""

    def accepted() -> float:
        evicted = server.metric("agent_connections_evicted_total", reason="unadmitted")
        return evicted + server.metric("unadmitted_agent_connections")

    until(lambda: accepted() >= CONNECTIONS, "the server has accepted all connections")


def test_silent_connections_do_not_take_the_frontends_descriptors(
    programs: Programs, web: HttpEndpoint
) -> None:
    """More connections than the server has file descriptors; none of them sends a byte."""
    server = programs.server(descriptors_max=DESCRIPTORS)
    first = programs.agent(server)
    server.wait_until_ready()
    with ExitStack() as stack:
        held = hold(stack, server.agent_port, CONNECTIONS)
        wait_until_accepted(server)
        for _ in range(3):
            assert fetch(server, web.address) == ANSWER
            assert server.health.get("/healthz")[0] == 200
        assert server.metric("agent_connections_evicted_total", reason="unadmitted") > 0
        assert server.metric("unadmitted_agent_connections") <= DESCRIPTORS // 4
        assert server.descriptors() < DESCRIPTORS // 2
        # A new agent gets in, although the attack has the same source.
        programs.agent(server)
        server.wait_for_agents(2)
        assert any(sock.recv(1) == b"" for sock in held if select.select([sock], [], [], 0)[0])
    assert first.alive


def test_agents_in_handshakes_do_not_take_the_frontends_descriptors(
    programs: Programs, web: HttpEndpoint
) -> None:
    """Each connection sends the beginning of a TLS handshake."""
    server = programs.server(descriptors_max=DESCRIPTORS)
    programs.agent(server)
    server.wait_until_ready()
    with ExitStack() as stack:
        for sock in hold(stack, server.agent_port, CONNECTIONS):
            try:
                sock.send(b"\x16\x03\x01\x02\x00\x01")
            except OSError:
                continue  # closed already
        wait_until_accepted(server)
        assert fetch(server, web.address) == ANSWER
        assert server.health.get("/healthz")[0] == 200
        assert server.metric("unadmitted_agent_connections") <= DESCRIPTORS // 4


@pytest.mark.slow
def test_a_connection_without_an_admitted_stream_ends(programs: Programs, web: HttpEndpoint) -> None:
    """Whether it is silent, completes the handshake only, calls another method or takes its call back."""
    server = programs.server()
    programs.agent(server)
    server.wait_until_ready()
    preface = f.PREFACE + f.settings({})
    other = preface + next(floods.FRAMES["other-methods"]("flood"))
    reset = preface + floods.connect_headers(1) + f.rst_stream(1, f.CANCEL)
    with ExitStack() as stack:
        connections: list[socket.socket] = hold(stack, server.agent_port, 1)
        for sent in (b"", preface, other, reset):
            sock = stack.enter_context(target(server, certificate=True).shake_hands())
            sock.sendall(sent)
            connections.append(sock)
        for sock in connections:
            assert closed_by_server(sock)
        until(lambda: server.metric("unadmitted_agent_connections") == 0, "no connection is left")
    assert fetch(server, web.address) == ANSWER


def closed_by_server(sock: socket.socket, seconds: float = CLOSED_SECONDS_MAX) -> bool:
    """Reads until the end, for longer than the server's deadline."""
    sock.settimeout(seconds)
    try:
        while sock.recv(65536):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    except TimeoutError:
        return False
    return True


def test_a_peer_does_not_read_the_status(programs: Programs) -> None:
    """It would name callers, destinations and agents. The health port, which a peer may reach, has no such
    page, and the admin port listens on one loopback address only."""
    for program in programs.pair():
        assert program.health.get("/status") == (404, "404 page not found\n")
        assert program.admin.get("/status")[0] == 200
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", program.admin.port), timeout=SECONDS)


def test_idle_connections_do_not_make_a_probe_fail(programs: Programs) -> None:
    """The kubelet kills an agent whose probes fail; so it would a server."""
    server, agent = programs.pair()
    for program in (agent, server):
        for web, path in ((program.health, "/healthz"), (program.admin, "/metrics")):
            with ExitStack() as stack:
                hold(stack, web.port, IDLE_CONNECTIONS)
                for _ in range(5):
                    assert web.get(path)[0] == 200
                # The probes were accepted after all others.
                assert program.descriptors() < IDLE_CONNECTIONS


def test_unfinished_requests_do_not_make_a_probe_fail(programs: Programs) -> None:
    """Each connection sends the beginning of a request."""
    _, agent = programs.pair()
    with ExitStack() as stack:
        for sock in hold(stack, agent.health.port, IDLE_CONNECTIONS):
            try:
                sock.send(b"GET /healthz HTTP/1.1\r\n")
            except OSError:
                continue  # closed already
        for _ in range(5):
            assert agent.health.get("/healthz")[0] == 200


@pytest.mark.slow
def test_an_unfinished_request_is_closed(programs: Programs) -> None:
    """Also without newer connections that would replace it: silent, or with the beginning of a request."""
    server = programs.server()
    with ExitStack() as stack:
        silent, begun = hold(stack, server.health.port, 2)
        begun.sendall(b"GET /healthz HTTP/1.1\r\n")
        for sock in (silent, begun):
            assert closed_by_server(sock, REQUEST_SECONDS_MAX)


def test_a_web_site_cannot_read_the_status_by_dns_rebinding(programs: Programs) -> None:
    """Its name resolves to loopback, so the browser sends it as Host; nor may it frame or embed the page."""
    for program in programs.pair():
        for path in ("/", "/status"):
            status, _, _ = ask_as(program.admin.port, "site.example", path)
            assert status == 421
            status, headers, _ = ask_as(program.admin.port, f"127.0.0.1:{program.admin.port}", path)
            assert (status, headers["Cross-Origin-Resource-Policy"]) == (200, "same-origin")
            assert "Access-Control-Allow-Origin" not in headers
        _, headers, _ = ask_as(program.admin.port, "localhost", "/")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def ask_as(port: int, host: str, path: str) -> tuple[int, Mapping[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


@needs_sshd
def test_a_machine_in_place_of_the_bootstrap_node_is_not_logged_in_to(tmp_path: Path) -> None:
    """It would get the collecting script and decide what the bundle shows."""
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node")
    directory = install_dir(tmp_path, node.key.read_bytes(), ("ExternalIP", "127.0.0.1"))
    command = [OURS / "bootbridge", "gather", "--dir", directory, "--user", "root", "--port", str(node.port)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    finally:
        node.close()
    assert done.returncode == 1
    assert "host key unknown" in done.stderr
    log = (tmp_path / "node/sshd.log").read_text()
    assert "Connection closed" in log
    assert "Accepted publickey" not in log


async def test_refused_evidence_does_not_fill_the_audit_log(tmp_path: Path) -> None:
    """Any peer can be refused, as often as it likes; the audit of tickets stays readable."""
    own = SoftwareTpm()
    entry = {"name": "worker-0", "role": "worker", "addresses": [HOST], "identity": own.identity}
    async with join_service(tmp_path, {"evidence": {"tpm": {}}, "instances": [entry]}) as service:
        forged = SoftwareTpm()
        for _ in range(40):
            with pytest.raises(EvidenceRefused, match="attestation key not enrolled"):
                await service.ticket("worker-0", Role.WORKER, forged)
        assert (await service.ticket("worker-0", Role.WORKER, own)).token
        status = await service.status()
    assert [line["outcome"] for line in service.audit] == ["issued"]
    assert (status["evidenceRefused"], status["logLinesDropped"]) == (40, 37)
    assert service.log.count("evidence refused") == 3
    assert "lines about unattested peers dropped count=37" in service.log


async def test_silent_connections_do_not_take_the_join_services_descriptors(tmp_path: Path) -> None:
    """More of them than it has file descriptors: its probes are answered, and an instance gets its ticket."""
    own = SoftwareTpm()
    entry = {"name": "worker-0", "role": "worker", "addresses": [HOST], "identity": own.identity}
    policy = {"evidence": {"tpm": {}}, "instances": [entry]}
    async with join_service(tmp_path, policy, descriptors_max=DESCRIPTORS) as service:
        with ExitStack() as stack:
            for _ in range(CONNECTIONS):
                address = (HOST, service.port)
                stack.enter_context(
                    socket.create_connection(address, floods.TIMEOUT_SECONDS, ("127.0.0.2", 0))
                )
            async with asyncio.timeout(SECONDS):
                assert (await service.status())["evidenceRefused"] == 0
                assert (await service.ticket("worker-0", Role.WORKER, own)).token
    assert "accept failed" not in service.log


@pytest.mark.slow
async def test_an_unattested_peer_sees_only_the_registers_that_the_operator_chose(
    tmp_path: Path, new_chip: NewChip
) -> None:
    """The join service proves itself first, so it shows its quote to any peer."""
    chip = new_chip(start=False)
    chip.manufacture()
    chip.start()
    entry = {"name": "worker-0", "role": "worker", "addresses": [HOST], "identity": SoftwareTpm().identity}
    evidence = {"tpm": {"device": chip.address, "pcrs": [4, 7], "endorsementCertificate": False}}
    policy = {"evidence": {"tpm": {}}, "instances": [entry]}
    async with join_service(tmp_path, policy, evidence=evidence) as service, silent_peer(service) as reader:
        await receive_frame(reader)
        shown = (await receive_frame(reader)).evidence
    assert shown is not None
    document = TpmEvidence.decode(shown.document)
    assert [pcr.index for pcr in document.pcrs] == [4, 7, 15]
    assert document.endorsement_certificate == b""
