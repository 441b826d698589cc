"""One lab for all tests of this package, and a table of step times per pairing of programs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE
from tests.e2e.results import Results
from tests.support.lab import Cluster, Pairing

RESULTS = pytest.StashKey[Results]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds each passed test of one pairing to the table, with its duration."""
    report = yield
    pairing = getattr(item, "callspec", None) and item.callspec.params.get("installed_pairing")  # type: ignore[attr-defined]
    if isinstance(pairing, Pairing) and call.when == "call" and report.passed:
        text = str(item.function.__doc__ or item.name)  # type: ignore[attr-defined]
        item.config.stash[RESULTS].add_step(text.partition("\n")[0], pairing, call.duration)
    return report


@pytest.fixture(scope="package")
def results(pytestconfig: pytest.Config) -> Iterator[Results]:
    """What the suite measures; written to build/ when it ends."""
    results = pytestconfig.stash.setdefault(RESULTS, Results())
    yield results
    results.save()


@pytest.fixture(scope="package")
def cluster_without_tunnel(tmp_path_factory: pytest.TempPathFactory, results: Results) -> Iterator[Cluster]:
    """A lab with webhooks and an aggregated API in the pod network, before `bootbridge up`."""
    directory = Path(tmp_path_factory.mktemp("lab"))
    with Cluster.up(directory, tunnel_images=(TUNNEL_IMAGE, KONNECTIVITY_IMAGE)) as cluster:
        results.timings = cluster.timings
        cluster.start_workloads()
        yield cluster


@pytest.fixture(scope="package")
def traces_before(cluster_without_tunnel: Cluster) -> set[str]:
    """Files, ports and processes of the bootstrap node before `bootbridge up`."""
    return cluster_without_tunnel.traces()


@pytest.fixture(scope="package")
def api_objects_before(cluster_without_tunnel: Cluster) -> set[str]:
    """Cluster-scoped objects of the API before `bootbridge up`."""
    return cluster_without_tunnel.cluster_objects()


@pytest.fixture(scope="package")
def cluster(
    cluster_without_tunnel: Cluster, traces_before: set[str], api_objects_before: set[str]
) -> Cluster:
    """The same lab once its first state is recorded; each test module installs the tunnel that it needs."""
    return cluster_without_tunnel
