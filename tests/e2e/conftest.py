"""One lab for all tests here, and a table of what was done with which programs, and how long it took."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE
from tests.e2e.record import Record
from tests.support.lab import Cluster, Pairing

RECORD = pytest.StashKey[Record]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A step that went well, with one pairing, goes into the table with the time it took."""
    report = yield
    pairing = getattr(item, "callspec", None) and item.callspec.params.get("bridged")  # type: ignore[attr-defined]
    if isinstance(pairing, Pairing) and call.when == "call" and report.passed:
        told = str(item.function.__doc__ or item.name)  # type: ignore[attr-defined]
        title = told.partition("\n")[0]
        item.config.stash[RECORD].step(title, pairing, call.duration)
    return report


@pytest.fixture(scope="package")
def record(pytestconfig: pytest.Config) -> Iterator[Record]:
    """What the suite measures; written to build/ when it ends."""
    record = pytestconfig.stash.setdefault(RECORD, Record())
    yield record
    record.end()


@pytest.fixture(scope="package")
def unbridged(tmp_path_factory: pytest.TempPathFactory, record: Record) -> Iterator[Cluster]:
    """The lab with webhooks and all that is called through the pod network, as the bridge finds it."""
    directory = Path(tmp_path_factory.mktemp("lab"))
    with Cluster.up(directory, tunnel_images=(TUNNEL_IMAGE, KONNECTIVITY_IMAGE)) as cluster:
        record.timings = cluster.timings
        cluster.start_workloads()
        yield cluster


@pytest.fixture(scope="package")
def bare(unbridged: Cluster) -> set[str]:
    """What lay and ran on the bootstrap node before there was a bridge."""
    return unbridged.traces()


@pytest.fixture(scope="package")
def bare_api(unbridged: Cluster) -> set[str]:
    """Which objects without a namespace the API had before there was a bridge."""
    return unbridged.cluster_objects()


@pytest.fixture(scope="package")
def cluster(unbridged: Cluster, bare: set[str], bare_api: set[str]) -> Cluster:
    """The same with a bridge; whose programs it is made of is a test's to choose."""
    return unbridged
