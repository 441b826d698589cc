"""One lab of blank instances for all tests here, which run in the order of their files' names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bootbridge.lab.instances import operator_files
from bootbridge.lab.layout import Layout
from tests.support.lab_instances import INIT_SECONDS, Done, Instances, missing
from tests.support.not_run import not_run

# node1 is initialised, node2 becomes a control plane, node3 and node4 workers; then tests reset node4.
LAYOUT = Layout(4, control_planes=2)
SPARE = "node4"


@pytest.fixture(scope="package")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instances]:
    """Four instances without a cluster."""
    if lack := missing():
        not_run(lack)
    with Instances.up(tmp_path_factory.mktemp("instances"), LAYOUT) as instances:
        yield instances


@dataclass(frozen=True)
class Inits:
    """The init that created the cluster, and a concurrent one."""

    first: Done
    second: Done


@pytest.fixture(scope="package")
def inits(blank: Instances) -> Inits:
    other = operator_files(blank.lab).directory / "second.conf"
    with blank.init_running() as running:
        blank.until_logged("node1", "init started")
        second = blank.init(f"--kubeconfig={other}", "--timeout=1m")
        out, err = running.communicate(timeout=INIT_SECONDS)
    return Inits(Done(running.args, running.returncode, out, err), second)


@pytest.fixture(scope="package")
def cluster(blank: Instances, inits: Inits) -> Instances:
    """The first instance has been initialised."""
    assert inits.first.returncode == 0, inits.first.stdout + inits.first.stderr
    return blank


@pytest.fixture
def spare(cluster: Instances) -> str:
    """An instance that is blank and has just booted."""
    cluster.make_blank(SPARE)
    return SPARE
