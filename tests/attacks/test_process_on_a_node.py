"""Attacks by a process on a node that does not hold an agent's credentials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_api_server import TOKEN, ApiThread, FakeApiServer
from tests.support.process_endpoints import HttpEndpoint
from tests.support.process_tunnels import fetch
from tests.support.token_mode import AGENT, agent_token, token_agent_flags, token_server_flags
from tests.support.tunnel_programs import Programs

VERBOSITIES = range(11)


@pytest.fixture
def kube(programs: Programs) -> Iterator[ApiThread]:
    thread = ApiThread(FakeApiServer(programs.folder))
    yield thread
    thread.close()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_reader_of_the_logs_finds_no_token(
    programs: Programs, kube: ApiThread, web: HttpEndpoint, log_format: str
) -> None:
    """At every verbosity, no part of an accepted or denied token, nor of the server's own credential."""
    good, denied = agent_token("good"), agent_token("denied")
    kube.api.token_reviews |= {good: AGENT, denied: {"error": f"invalid bearer token {denied}"}}
    for verbosity in VERBOSITIES:
        logging = {"v": verbosity, "log-format": log_format}
        server = programs.server(flags=token_server_flags(kube) | logging)
        accepted, refused = (
            programs.launch_agent(server, flags=token_agent_flags(programs, token) | logging)
            for token in (good, denied)
        )
        server.wait_until_ready()
        assert fetch(server, web.address) == b"hello from the endpoint"
        refused.wait_for_log("invalid bearer token")
        written = server.log + accepted.log + refused.log
        for secret in (good, denied, TOKEN):
            assert all(part not in written for part in secret.split("."))
        for program in (server, accepted, refused):
            assert not any(
                secret in argument for argument in program.argv for secret in (good, denied, TOKEN)
            )
            program.kill()
