"""What all tests share: programs that are gone after the test, and peers that are there or missed aloud."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import process_pairings
from tests.support.process_endpoints import Endpoint, HttpEndpoint, Serve
from tests.support.process_program import PEERS
from tests.support.process_site import Pairing, Site

PEER_NAMES = (
    "proxy-server",
    "proxy-agent",
    "proxy-test-client",
    "h2spec",
    "upstream-integration.test",
    "ignition-validate",
)
NOT_RUN = pytest.StashKey[str]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Interop tests without their peers: one visible line, and under CI a failure."""
    missing = [name for name in PEER_NAMES if not (PEERS / name).exists()]
    unable = [item for item in items if missing and item.get_closest_marker("interop")]
    if not unable:
        return
    config.stash[NOT_RUN] = f"interop: {len(unable)} tests NOT RUN, missing {', '.join(missing)}: make peers"
    for item in unable:
        item.add_marker(pytest.mark.skip(reason="the Go peers are missing"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    line = terminalreporter.config.stash.get(NOT_RUN, "")
    if line:
        terminalreporter.write_line(line, red=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.stash.get(NOT_RUN, "") and os.environ.get("CI") == "true" and not exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Servers and agents for one test; afterwards all are gone, and none has complained of a bug."""
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


@pytest.fixture(params=process_pairings.ALL)
def pairing(request: pytest.FixtureRequest) -> Pairing:
    chosen: Pairing = request.param
    return chosen


@pytest.fixture(params=["http-connect", "grpc"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def endpoint() -> Iterator[Callable[..., Endpoint]]:
    """Start endpoints: `endpoint(echo)`, `endpoint(echo, "::1")`."""
    started: list[Endpoint] = []

    def start(serve: Serve, host: str = "127.0.0.1") -> Endpoint:
        started.append(Endpoint(serve, host))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def web() -> Iterator[HttpEndpoint]:
    """An HTTP endpoint on IPv4 loopback."""
    server = HttpEndpoint()
    yield server
    server.close()
