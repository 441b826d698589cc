"""The original test client against our server: both modes, unix socket and TCP with mutual TLS."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.process_endpoints import HttpEndpoint
from tests.support.process_program import PEERS, flag_arguments, free_port
from tests.support.tunnel_programs import Programs, Server

pytestmark = pytest.mark.interop

CLIENT_SECONDS_MAX = 60
REQUESTS = 5


def run_client(server: Server, port: int) -> subprocess.CompletedProcess[str]:
    """Ask through the tunnel for a page of the endpoint on `port`, several times."""
    certificates = server.certificates
    flags: dict[str, object] = {
        "mode": server.mode,
        "request-host": "127.0.0.1",
        "request-port": port,
        "request-path": "hello",
        "test-requests": REQUESTS,
    }
    if server.uds:
        flags |= {"proxy-uds": server.uds, "proxy-host": "", "proxy-port": 0}
    else:
        flags |= {
            "proxy-host": "127.0.0.1",
            "proxy-port": server.frontend_port,
            "ca-cert": certificates.path("frontends-ca.crt"),
            "client-cert": certificates.path("frontend.crt"),
            "client-key": certificates.path("frontend.key"),
        }
    return subprocess.run(
        [str(PEERS / "proxy-test-client"), *flag_arguments(flags)],
        # It takes any signal for the end, and on a busy machine Go interrupts its own threads with one.
        env={**os.environ, "GODEBUG": "asyncpreemptoff=1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=CLIENT_SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize("tcp", [False, True], ids=["unix-socket", "tcp-mtls"])
@pytest.mark.parametrize("agent", ["ours", "go"])
def test_the_original_client_gets_its_answers(
    programs: Programs, mode: str, tcp: bool, agent: str, web: HttpEndpoint
) -> None:
    """Every request is answered, and nothing is left of it."""
    server = programs.server("ours", mode, tcp=tcp)
    programs.agent(server, agent)
    server.wait_until_ready()
    result = run_client(server, web.port)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("hello from the endpoint") == REQUESTS, result.stdout
    assert server.metric("dial_duration_seconds_count") >= 1
    assert server.metric("pending_backend_dials") == 0


def test_the_original_client_hears_of_a_failed_dial(programs: Programs, mode: str) -> None:
    """It fails at once, every time, and the server counts the endpoint as the reason."""
    server, _ = programs.pair(mode=mode)
    result = run_client(server, free_port())
    assert result.returncode != 0
    assert f"Requests failed: {REQUESTS}" in result.stdout
    assert server.metric("dial_failure_count", reason="error_response") == REQUESTS
