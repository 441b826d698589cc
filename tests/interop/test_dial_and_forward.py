"""`bootbridge dial` and `bootbridge forward`, with our server and the original, in both modes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bootbridge.cli import main
from tests.support.process_endpoints import AnswerAfterEnd, Endpoint, Gate, HttpEndpoint, echo, pattern
from tests.support.process_program import OURS, free_port, until
from tests.support.process_tunnels import receive
from tests.support.tunnel_programs import Pairing, Programs, Server

PATIENCE_SECONDS = 30.0
BOOTBRIDGE = str(OURS / "bootbridge")
REQUEST = b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HELLO = b"hello from the endpoint"
Endpoints = Callable[..., Endpoint]


@pytest.fixture(params=["unix", "tcp"])
def tcp(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "tcp")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Pairing, str, bool], Server]]:
    """Starts each kind of tunnel once; tests that stop one start their own."""
    programs = Programs(tmp_path_factory.mktemp("tunnels"))
    servers: dict[tuple[Pairing, str, bool], Server] = {}

    def start(pairing: Pairing, mode: str, tcp: bool) -> Server:
        key = (pairing, mode, tcp)
        if key not in servers:
            servers[key] = programs.pair(pairing, mode, tcp=tcp)[0]
        return servers[key]

    try:
        yield start
    finally:
        programs.close()


@pytest.fixture
def server(started: Callable[[Pairing, str, bool], Server], pairing: Pairing, mode: str, tcp: bool) -> Server:
    return started(pairing, mode, tcp)


def frontend(server: Server) -> list[str]:
    if server.uds:
        return ["--socket", server.uds]
    path = server.certificates.path
    files = [
        "--ca-cert",
        path("frontends-ca.crt"),
        "--cert",
        path("frontend.crt"),
        "--key",
        path("frontend.key"),
    ]
    return ["--frontend", f"127.0.0.1:{server.frontend_port}", *files]


def dial(server: Server, address: str, *words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [BOOTBRIDGE, "dial", *frontend(server), *words, address]
    return subprocess.run(command, input=data, capture_output=True, timeout=PATIENCE_SECONDS, check=False)


class Forward:
    """A running `bootbridge forward`."""

    def __init__(self, server: Server, local: str, address: str, folder: Path) -> None:
        command = [BOOTBRIDGE, "forward", *frontend(server), "--json", "--linger=200ms", local, address]
        self.errors = folder / "forward.stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        self.listening = json.loads(line)["listening"]
        self.port = int(self.listening[0].rpartition(":")[2])

    def connect(self, host: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection((host, self.port), timeout=PATIENCE_SECONDS)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def forward(server: Server, address: str, folder: Path, local: str = "0") -> Iterator[Forward]:
    running = Forward(server, local, address, folder)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def to_the_end(sock: socket.socket) -> bytes:
    received = b""
    while data := sock.recv(65536):
        received += data
    return received


def is_reset(running: Forward) -> bool:
    """Whether the next client is reset; it may be already while it connects."""
    try:
        with running.connect() as client:
            return to_the_end(client) != b""
    except ConnectionResetError:
        return True


# --- dial


def test_dial_copies_stdin_to_the_destination_and_its_answer_to_stdout(
    server: Server, web: HttpEndpoint
) -> None:
    found = dial(server, web.address, data=REQUEST)
    assert (found.returncode, found.stderr) == (0, b"")
    assert found.stdout.endswith(HELLO)


def test_dial_passes_on_many_bytes(server: Server, web: HttpEndpoint) -> None:
    """More than all buffers and windows on the way hold."""
    body = pattern(6 << 20)
    head = f"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    found = dial(server, web.address, data=head.encode() + body)
    assert found.stdout.endswith(hashlib.sha256(body).hexdigest().encode())
    found = dial(server, web.address, data=REQUEST.replace(b"/hello", b"/bytes/6000000"))
    assert found.stdout.partition(b"\r\n\r\n")[2] == pattern(6_000_000)


def test_dial_names_the_hop_that_failed(server: Server) -> None:
    """Exit code 2: the tunnel answered, and nothing listens at the destination."""
    port = free_port()
    found = dial(server, f"127.0.0.1:{port}", "--check")
    assert found.returncode == 2
    assert b"dial failed (agent to endpoint)" in found.stderr
    assert b"connection refused" in found.stderr
    assert b"nothing listens on that port" in found.stderr
    assert found.stdout == b""


def test_dial_check_connects_and_says_nothing(server: Server, endpoint: Endpoints) -> None:
    target = endpoint(echo)
    found = dial(server, target.address, "--check")
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")
    until(lambda: target.accepted == 1, "the destination accepted")
    until(lambda: target.open_connections == 0, "the connection is closed")


def test_dials_of_unknown_mode_cause_no_refused_requests(
    programs: Programs, mode: str, web: HttpEndpoint, tmp_path: Path
) -> None:
    """The server's log would have a line for each; also while no dial of a `forward` has succeeded yet."""
    server = programs.pair(mode=mode)[0]
    assert dial(server, web.address, data=REQUEST).stdout.endswith(HELLO)
    with forward(server, f"127.0.0.1:{free_port()}", tmp_path) as running:
        assert is_reset(running)
    server.wait_for_log("dial refused")
    assert "request refused" not in server.log


@pytest.mark.parametrize("kind", ["ours", pytest.param("go", marks=pytest.mark.interop)])
def test_dial_without_an_agent(programs: Programs, kind: str, mode: str) -> None:
    server = programs.server(kind, mode)
    found = dial(server, "10.0.0.1:80", "--check")
    assert found.returncode == 2
    assert b"dial failed (server, no agent)" in found.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--socket", "{folder}/none.sock"], "No such file or directory (is the server running"),
        (["--socket", "{folder}"], "frontend of the server"),
        ([], "--socket: no tunnel is installed on this node (give --socket PATH"),
        (["--frontend", "127.0.0.1:1"], "--ca-cert: required with --frontend (give --certs DIR"),
        (["--frontend", "127.0.0.1:1", "--certs", "{folder}"], "--ca-cert: cannot read"),
        (["--socket", "s", "--certs", "x"], "--certs: requires --frontend"),
        (["--socket", "s", "--frontend", "x:1"], "--frontend: cannot be combined with --socket"),
    ],
)
def test_dial_without_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    """Exit code 1: nothing was dialled."""
    assert main.main(["dial", *(word.format(folder=tmp_path) for word in words), "10.0.0.1:80"]) == 1
    assert problem in capsys.readouterr().err


def test_dial_passes_on_the_end_of_stdin(programs: Programs, endpoint: Endpoints) -> None:
    """Between our own programs, over a unix socket in mode http-connect: the destination still answers."""
    server = programs.pair(mode="http-connect")[0]
    found = dial(server, endpoint(AnswerAfterEnd()).address, data=b"all of it")
    assert (found.returncode, found.stdout.decode()) == (0, hashlib.sha256(b"all of it").hexdigest())


@pytest.mark.parametrize("mode", ["grpc"])
@pytest.mark.parametrize("tcp", [False])
def test_dial_ends_when_the_destination_is_silent_after_stdin(server: Server, endpoint: Endpoints) -> None:
    """gRPC has no half-close: the destination does not learn of the end."""
    found = dial(server, endpoint(echo).address, "--linger=200ms", data=b"echoed")
    assert (found.returncode, found.stdout) == (0, b"echoed")


def test_dial_ends_with_130_on_ctrl_c(programs: Programs, mode: str, endpoint: Endpoints) -> None:
    server = programs.pair(mode=mode)[0]
    target = endpoint(echo)
    command = [BOOTBRIDGE, "dial", *frontend(server), target.address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        assert process.stdout.read(1) == b"x"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    until(lambda: target.open_connections == 0, "the destination is closed")


# --- forward


def test_forward_serves_several_clients_at_once(server: Server, endpoint: Endpoints, tmp_path: Path) -> None:
    """One that waits for its destination does not delay the others."""
    gate = Gate()
    target = endpoint(gate)
    with forward(server, target.address, tmp_path) as running, running.connect() as waiting:
        waiting.sendall(b"first")
        until(lambda: target.accepted == 1, "the first is connected")
        others = [running.connect() for _ in range(10)]
        for number, other in enumerate(others):
            other.sendall(b"%d" % number)
        until(lambda: target.accepted == 11, "all are connected")
        gate.opened.set()
        assert receive(waiting, 5) == b"first"
        assert [receive(other, 1) for other in others] == [b"%d" % number for number in range(10)]
        for other in others:
            other.close()
        until(lambda: target.open_connections == 1, "closed clients are closed at the destination")


def test_forward_passes_on_many_bytes_and_the_end(server: Server, web: HttpEndpoint, tmp_path: Path) -> None:
    with forward(server, web.address, tmp_path) as running, running.connect() as client:
        client.sendall(REQUEST.replace(b"/hello", b"/bytes/6000000"))
        assert to_the_end(client).partition(b"\r\n\r\n")[2] == pattern(6_000_000)


def test_forward_resets_a_client_whose_dial_fails_and_says_why(server: Server, tmp_path: Path) -> None:
    with forward(server, f"127.0.0.1:{free_port()}", tmp_path) as running:
        assert is_reset(running)
        until(lambda: "connection refused" in running.errors.read_text(), "the reason is on stderr")
        assert "connection of 127.0.0.1:" in running.errors.read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_forward_is_ended_by_a_signal_with_all_its_connections(
    programs: Programs, mode: str, endpoint: Endpoints, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    server = programs.pair(mode=mode)[0]
    target = endpoint(echo)
    with forward(server, target.address, tmp_path) as running, running.connect() as client:
        client.sendall(b"x")
        assert receive(client, 1) == b"x"
        assert running.stop(number) == code
        until(lambda: target.open_connections == 0, "the destination is closed")
        assert "stopped, 1 connection forwarded" in running.errors.read_text()
        with pytest.raises(ConnectionRefusedError):
            running.connect()


def test_forward_passes_on_a_half_close(programs: Programs, endpoint: Endpoints, tmp_path: Path) -> None:
    server = programs.pair(mode="http-connect")[0]
    with (
        forward(server, endpoint(AnswerAfterEnd()).address, tmp_path) as running,
        running.connect() as client,
    ):
        client.sendall(b"all of it")
        client.shutdown(socket.SHUT_WR)
        assert to_the_end(client).decode() == hashlib.sha256(b"all of it").hexdigest()


def test_forward_over_ipv6(programs: Programs, mode: str, tmp_path: Path) -> None:
    """Loopback of both families by default, and an IPv6 destination."""
    server = programs.pair(mode=mode)[0]
    target = Endpoint(echo, "::1")
    try:
        with forward(server, target.address, tmp_path) as running:
            assert [each.rpartition(":")[0] for each in running.listening] == ["127.0.0.1", "[::1]"]
            with running.connect("::1") as client:
                client.sendall(b"x")
                assert receive(client, 1) == b"x"
        with forward(server, target.address, tmp_path, local="[::1]:0") as running:
            assert running.listening == [f"[::1]:{running.port}"]
    finally:
        target.close()


def test_forward_survives_a_restarted_server(
    programs: Programs, mode: str, endpoint: Endpoints, tmp_path: Path
) -> None:
    """A client in between is reset; the next one works."""
    server, agent = programs.pair(mode=mode)
    with forward(server, endpoint(echo).address, tmp_path) as running:
        server.kill()
        assert is_reset(running)
        os.unlink(server.uds)
        flags = {"agent-port": server.agent_port, "uds-name": server.uds}
        again = programs.server(mode=mode, flags=flags)
        agent.wait_for_servers(1)
        again.wait_until_ready()
        with running.connect() as client:
            client.sendall(b"x")
            assert receive(client, 1) == b"x"


@pytest.mark.parametrize(
    ("local", "problem"),
    [
        ("x", "LOCAL: invalid [ADDRESS:]PORT 'x'"),
        ("host.example:1", "LOCAL: invalid [ADDRESS:]PORT"),
        ("70000", "LOCAL: invalid [ADDRESS:]PORT"),
        (
            "192.0.2.1:0",
            "cannot listen on 192.0.2.1:0: Cannot assign requested address (give an address of this",
        ),
        ("{used}", "Address already in use (give another port, or 0 for a free one)"),
    ],
)
def test_forward_cannot_listen(
    local: str, problem: str, endpoint: Endpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["forward", "--socket", "s", local.format(used=endpoint(echo).port), "10.0.0.1:80"]
    assert main.main(words) == 1
    assert problem in capsys.readouterr().err
