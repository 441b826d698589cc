"""Authentication by default, reasons for refusals, and certificate renewal without a restart."""

from __future__ import annotations

import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from bootbridge.runtime.source_penalties import FREE_FAULTS
from bootbridge.trust.authority import Authority
from tests.attacks.test_network_peer import target
from tests.support.certificates import NAMES
from tests.support.process_endpoints import Endpoint, HttpEndpoint, echo, reset_after_read
from tests.support.process_program import until
from tests.support.process_tunnels import dial, fetch, receive
from tests.support.tunnel_programs import Programs

HELLO = b"hello from the endpoint"
NO_CERTIFICATE = {"agent-cert": None, "agent-key": None}
Endpoints = Callable[..., Endpoint]
SETTINGS = bytes.fromhex("000000 04 00 00000000")
SETTINGS_ACK = bytes.fromhex("000000 04 01 00000000")


# --- no access by default


def test_a_server_without_agent_authentication_refuses_to_start(programs: Programs) -> None:
    """Without a CA or tokens, the error names the flags to set."""
    server = programs.launch_server(flags={"cluster-ca-cert": None})
    assert server.wait() == 1
    assert "--cluster-ca-cert" in server.log
    assert "--insecure-agents" in server.log


def test_insecure_agents_is_warned_about(programs: Programs, web: HttpEndpoint) -> None:
    """The tunnel works, and the log has a warning."""
    server = programs.server(flags={"cluster-ca-cert": None, "insecure-agents": True})
    programs.agent(server, flags=NO_CERTIFICATE)
    server.wait_until_ready()
    assert fetch(server, web.address) == HELLO
    assert "--insecure-agents" in server.log


def test_an_agent_without_a_certificate_is_refused_with_the_reason(programs: Programs) -> None:
    """The reason is in the logs of server and agent."""
    server = programs.server()
    agent = programs.agent(server, flags=NO_CERTIFICATE)
    server.wait_for_log("agent refused")
    server.wait_for_log("certificate")
    agent.wait_for_log("server not reached")
    agent.wait_for_log("certificate required")
    assert server.health.get("/readyz")[0] == 500


def test_an_agent_of_another_authority_is_refused_with_the_reason(programs: Programs) -> None:
    Authority.create("other-authority").issue_client("untrusted").write(programs.folder, "untrusted")
    path = programs.certificates.path
    server = programs.server()
    programs.agent(server, flags={"agent-cert": path("untrusted.crt"), "agent-key": path("untrusted.key")})
    server.wait_for_log("agent refused")
    server.wait_for_log("certificate")
    assert server.metric("ready_backend_connections") == 0


def test_an_agent_does_not_trust_a_server_of_another_authority(programs: Programs) -> None:
    Authority.create("other-authority").write(programs.folder, "other-authority-ca")
    server = programs.server()
    agent = programs.agent(server, flags={"ca-cert": programs.certificates.path("other-authority-ca.crt")})
    agent.wait_for_log("server not reached")
    agent.wait_for_log("certificate")
    assert server.metric("ready_backend_connections") == 0


def test_an_agent_checks_the_name_of_its_server(programs: Programs) -> None:
    """A certificate for another host is rejected; both logs say why, the agent's with its names."""
    programs.certificates.agents.issue_server(["elsewhere.example"]).write(programs.folder, "server")
    server = programs.server()
    agent = programs.agent(server)
    agent.wait_for_log("server not reached")
    agent.wait_for_log("not valid for 127.0.0.1, only for elsewhere.example (dial one of its names")
    server.wait_for_log("agent refused")
    server.wait_for_log("the peer rejected our certificate: bad certificate")
    assert server.metric("ready_backend_connections") == 0


def test_a_frontend_without_a_certificate_is_refused(programs: Programs, mode: str) -> None:
    """TCP frontends are mTLS, always."""
    server, _ = programs.pair(mode=mode, tcp=True)
    context = ssl.create_default_context(cafile=programs.certificates.path("frontends-ca.crt"))
    context.set_alpn_protocols(["h2" if mode == "grpc" else "http/1.1"])
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(server.frontend_port, context)
    server.wait_for_log("frontend refused")


def test_frontends_over_tcp_with_mutual_tls(programs: Programs, mode: str, web: HttpEndpoint) -> None:
    server, _ = programs.pair(mode=mode, tcp=True)
    assert fetch(server, web.address) == HELLO


def test_the_oldest_tls_version_is_honoured(programs: Programs) -> None:
    """`--tls-min-version=VersionTLS13`: a TLS 1.2 handshake fails, a 1.3 one does not."""
    server = programs.server(flags={"tls-min-version": "VersionTLS13"})
    context = programs.certificates.agent_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(server.agent_port, context)
    assert handshake(server.agent_port, programs.certificates.agent_context()) == "TLSv1.3"


def handshake(port: int, context: ssl.SSLContext) -> str | None:
    """Returns the negotiated TLS version. Reads once, since a refusal may arrive late."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as tls,
    ):
        tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        tls.recv(100)
        return tls.version()


def test_without_ca_cert_the_systems_roots_are_used(programs: Programs, web: HttpEndpoint) -> None:
    """The original fails here."""
    server = programs.server()
    roots = {
        "SSL_CERT_FILE": programs.certificates.path("agents-ca.crt"),
        "SSL_CERT_DIR": str(programs.folder / "no"),
    }
    programs.agent(server, flags={"ca-cert": None}, env=roots)
    server.wait_until_ready()
    assert fetch(server, web.address) == HELLO


def test_without_ca_cert_unknown_servers_are_not_trusted(programs: Programs) -> None:
    server = programs.server()
    agent = programs.agent(server, flags={"ca-cert": None})
    agent.wait_for_log("server not reached")
    assert server.metric("ready_backend_connections") == 0


def test_a_server_that_breaks_off_the_handshake_is_tried_again_at_once(programs: Programs) -> None:
    """The agent does not wait for the time limit of the handshake."""
    breaker = Endpoint(reset_after_read)
    agent = programs.agent(breaker.port)
    until(lambda: breaker.accepted >= 3, "the agent keeps trying")
    breaker.close()
    assert agent.alive


def test_what_a_server_says_together_with_its_handshake_is_heard(programs: Programs) -> None:
    """With TLS 1.2 the server's last handshake message and its SETTINGS may come in one read."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(
        programs.certificates.path("server.crt"), programs.certificates.path("server.key")
    )
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    received = threading.Event()

    def greet_early(sock: socket.socket) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        while not handshake_done(tls):
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(65536))
        tls.write(SETTINGS)
        sock.sendall(outgoing.read())
        sent = b""
        while SETTINGS_ACK not in sent:
            incoming.write(sock.recv(65536))
            sent += everything_in(tls)
        received.set()

    listener = Endpoint(greet_early)
    programs.agent(listener.port)
    assert received.wait(20)
    listener.close()


def handshake_done(tls: ssl.SSLObject) -> bool:
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def everything_in(tls: ssl.SSLObject) -> bytes:
    sent = b""
    try:
        while data := tls.read(65536):
            sent += data
    except ssl.SSLWantReadError:
        pass
    return sent


# --- renewal without a restart


def test_everything_is_renewed_without_dropping_a_connection(programs: Programs, endpoint: Endpoints) -> None:
    """A new authority replaces the old one, certificate by certificate, while a tunnel goes on."""
    server, old_agent = programs.pair()
    tunnel = dial(server, endpoint(echo).address)
    new = Authority.create("agents, renewed")
    (programs.folder / "agents-ca.crt").write_bytes(new.cert_pem)
    new.issue_server(NAMES).write(programs.folder, "server")
    new.issue_client("agent").write(programs.folder, "agent")
    new_agent = programs.agent(server)
    server.wait_for_agents(2)
    tunnel.send(b"the old connection goes on")
    assert receive(tunnel, 26) == b"the old connection goes on"
    tunnel.close()
    assert old_agent.alive
    new_agent.wait_for_servers(1)


def test_an_agent_reads_its_renewed_files_when_it_connects_again(
    programs: Programs, web: HttpEndpoint
) -> None:
    """The server comes back with a new authority; the running agent follows."""
    server, agent = programs.pair()
    new = Authority.create("agents, renewed")
    new.write(programs.folder, "agents-ca")
    new.issue_server(NAMES).write(programs.folder, "server")
    new.issue_client("agent").write(programs.folder, "agent")
    server.kill()
    again = programs.server(flags={"agent-port": server.agent_port})
    again.wait_until_ready()
    assert fetch(again, web.address) == HELLO
    assert agent.alive


def test_a_broken_renewal_keeps_the_last_good_files(programs: Programs, web: HttpEndpoint) -> None:
    """A half-written certificate is complained about and not used."""
    server, _ = programs.pair()
    (programs.folder / "server.crt").write_text("-----BEGIN CERTIFICATE-----\nhalf of it")
    second = programs.agent(server)
    server.wait_for_agents(2)
    assert fetch(server, web.address) == HELLO
    assert "--cluster-cert" in server.log
    until(lambda: server.admin.status()["tls"]["reloadError"], "/status says so")
    assert second.alive


def test_an_invalid_new_frontend_certificate_is_logged_too(programs: Programs, web: HttpEndpoint) -> None:
    """It has certificates of its own, and `/status` shows them beside the agents'."""
    server, _ = programs.pair(tcp=True)
    assert server.admin.status()["frontendTLS"]["reloadError"] is None
    broken = server.admin.status()["frontendTLS"]["files"]["--server-cert"]
    Path(broken).write_text("-----BEGIN CERTIFICATE-----\nhalf of it")
    assert fetch(server, web.address) == HELLO
    assert server.admin.status()["frontendTLS"]["reloadError"]
    assert server.admin.status()["tls"]["reloadError"] is None


def test_keys_are_not_in_the_logs_or_on_the_ports(programs: Programs) -> None:
    """Nothing that a program says holds a private key."""
    server, agent = programs.pair(server_flags={"v": 9}, agent_flags={"v": 9})
    pages = [
        urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20).read().decode()
        for program in (server, agent)
        for port, path in ((program.admin.port, "/status"), (program.health.port, "/metrics"))
    ]
    assert "PRIVATE KEY" not in "".join([*pages, server.log, agent.log])


def test_a_peer_that_shows_a_certificate_and_leaves_delays_no_agent(programs: Programs) -> None:
    """As `bootbridge doctor` does: its checks must not delay the agents behind the same address."""
    server = programs.server()
    for _ in range(3 * FREE_FAULTS):
        with target(server, certificate=True).shake_hands() as sock:
            assert sock.recv(1), "the server has verified the certificate, and sends its SETTINGS"
    programs.agent(server)
    server.wait_until_ready()
    assert server.metric("agent_handshakes_delayed_total") == 0
