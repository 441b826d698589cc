"""What all tests share: programs that are gone after the test, and peers that are there or missed aloud."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import process_pairings
from tests.support.process_endpoints import Endpoint, HttpEndpoint, Serve
from tests.support.process_program import PEERS
from tests.support.tunnel_programs import Pairing, Programs

PEER_NAMES = (
    "proxy-server",
    "proxy-agent",
    "proxy-test-client",
    "h2spec",
    "upstream-integration.test",
    "ignition-validate",
)
# Time decides no test: on a busy machine, an example or its generation may take any time.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# A shell starts what it puts in the background deaf to Ctrl-C, and children inherit that; ours must hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
NOT_RUN = pytest.StashKey[list[str]]()


def missing_peers() -> str:
    lacking = [name for name in PEER_NAMES if not (PEERS / name).exists()]
    return f"missing {', '.join(lacking)}: make peers" if lacking else ""


def missing_kubernetes() -> str:
    from tests.support.kubernetes import missing

    return missing()


def missing_for_a_lab() -> str:
    from tests.support.lab import missing

    return missing()


def missing_chromium() -> str:
    from tests.support.chromium import missing

    return missing()


def missing_helm() -> str:
    from tests.support.helm import missing

    return missing()


# What tests with a marker need beside Python. Asked only when such tests are about to run.
NEEDS = {
    "interop": missing_peers,
    "kubernetes": missing_kubernetes,
    "e2e": missing_for_a_lab,
    "browser": missing_chromium,
    "helm": missing_helm,
}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests without what they need: one visible line for each kind, and under CI a failure."""
    config.stash[NOT_RUN] = []
    if config.option.collectonly:
        return
    for marker, missing in NEEDS.items():
        wanted = [item for item in items if item.get_closest_marker(marker)]
        if wanted and (lack := missing()):
            config.stash[NOT_RUN].append(f"{marker}: {len(wanted)} tests NOT RUN, {lack}")
            for item in wanted:
                item.add_marker(pytest.mark.skip(reason=lack))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Where tests are spread over processes: what any of them missed, once."""
    known = node.config.stash.setdefault(NOT_RUN, [])
    known += [line for line in getattr(node, "workeroutput", {}).get("not_run", []) if line not in known]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(NOT_RUN, []):
        terminalreporter.write_line(line, red=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_run"] = session.config.stash.get(NOT_RUN, [])
        return
    if session.config.stash.get(NOT_RUN, []) and os.environ.get("CI") == "true" and not exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Servers and agents for one test; afterwards all are gone, and none has complained of a bug."""
    programs = Programs(tmp_path)
    try:
        yield programs
    finally:
        programs.close()


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
