"""A bootstrap on a network without IPv4, or with both families: the bridge carries the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from bootbridge.bootstrap.progress import Progress
from bootbridge.lab import components
from bootbridge.lab.bring_up import Builder, konnectivity_programs
from bootbridge.lab.images import Images
from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import Layout
from tests.lab.storm import storm
from tests.support.lab import IMAGES, Cluster, missing

pytestmark = pytest.mark.e2e

VERSIONS = {"ipv6": {6}, "dual": {4, 6}}


@pytest.fixture(params=list(VERSIONS))
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    if lack := missing():
        pytest.fail(lack) if os.environ.get("CI") == "true" else pytest.skip(lack)
    found = components.find()
    lab = Lab(tmp_path / "lab", Layout(1, request.param))
    images = Images(IMAGES, found, konnectivity_programs())
    try:
        Builder(lab, found, images, Progress(sys.stderr)).bring_up()
        yield Cluster(lab, found, images)
    finally:
        assert lab.down() == []


def test_webhooks_are_asked_through_the_tunnel(cluster: Cluster) -> None:
    """Pods have addresses of the families asked for, and every admission is judged by the webhook itself."""
    cluster.start_workloads()
    cluster.bridge()
    with storm(cluster):
        pass
    pods = cluster.get("pods", "-n", "extensions")["items"]
    addresses = [ip_address(each["ip"]) for each in pods[0]["status"]["podIPs"]]
    assert {address.version for address in addresses} == VERSIONS[cluster.lab.layout.families]
    assert cluster.metric("apiserver_egress_dialer_dial_start_total")
