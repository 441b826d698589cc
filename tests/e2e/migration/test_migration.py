"""From Konnectivity's Go programs to ours and back, under load: a call fails only if no server is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE
from tests.e2e.migration.installation import STREAMS, Installation
from tests.e2e.migration.step_results import CUT, StepResult, StepResults
from tests.support.lab import Cluster, missing
from tests.support.not_run import not_run

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def steps() -> Iterator[StepResults]:
    """What the tests measure; written to build/ when they end."""
    results = StepResults()
    yield results
    results.write()


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A lab with Konnectivity's Go programs, and admissions that never stop."""
    if lack := missing():
        not_run(lack)
    directory = tmp_path_factory.mktemp("lab")
    with Cluster.up(directory, tunnel_images=(TUNNEL_IMAGE, KONNECTIVITY_IMAGE)) as cluster:
        installation = Installation(cluster)
        installation.install()
        with installation.under_load():
            yield installation


def test_agents_from_go_to_go(installation: Installation, steps: StepResults) -> None:
    """The measure for the next ones: an agent is killed with the calls that it carries."""
    _check_agents(_run(installation, steps, "agents, Go to Go", lambda: installation.roll_agents("Go")))


def test_server_from_go_to_go(installation: Installation, steps: StepResults) -> None:
    """The measure for the next ones. The kubelet ends the old server before it starts the new one."""
    _run(installation, steps, "server, Go to Go", lambda: installation.replace_servers("Go"))


def test_agents_from_go_to_ours(installation: Installation, steps: StepResults) -> None:
    _check_agents(_run(installation, steps, "agents, Go to ours", lambda: installation.roll_agents("ours")))


def test_server_from_go_to_ours(installation: Installation, steps: StepResults) -> None:
    _replace_servers(installation, steps, "server, Go to ours", "ours")


def test_server_from_ours_to_go(installation: Installation, steps: StepResults) -> None:
    _replace_servers(installation, steps, "server, ours to Go", "Go")


def test_agents_from_ours_to_go(installation: Installation, steps: StepResults) -> None:
    _check_agents(_run(installation, steps, "agents, ours to Go", lambda: installation.roll_agents("Go")))


def _run(
    installation: Installation, steps: StepResults, name: str, change: Callable[[], None]
) -> list[StepResult]:
    found = installation.step(name, change)
    steps.steps += found
    return found


def _check_agents(found: list[StepResult]) -> None:
    for each in found:
        assert set(each.kinds) <= {CUT}, each.document()
        assert len(each.rejected) <= 2 * STREAMS, each.document()


def _replace_servers(installation: Installation, steps: StepResults, step: str, program: str) -> None:
    for each in _run(installation, steps, step, lambda: installation.replace_servers(program)):
        assert not each.unanswered, each.document()
        assert not each.unexplained, each.document()
