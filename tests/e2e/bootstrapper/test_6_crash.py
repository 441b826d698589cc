"""A bootstrapper that was killed during a join resumes it after its restart."""

from __future__ import annotations

import pytest

from tests.support.lab_instances import Instances

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    "moment", ["joining node=", "stage started stage=preflight", "stage done stage=preflight"]
)
def test_a_killed_join_is_resumed(moment: str, cluster: Instances, spare: str) -> None:
    cluster.until(lambda: cluster.ready("node1"), "the first node is ready")
    with cluster.kubeadm_paused_after_preflight(spare):
        cluster.start_bootstrapper(spare)
        cluster.until_logged(spare, moment)
        cluster.kill_bootstrapper(spare)
        assert "cluster joined" not in cluster.log(spare)
    cluster.start_bootstrapper(spare)
    cluster.until(lambda: cluster.ready(spare), "it has joined", 400.0)
    cluster.until(lambda: cluster.status(spare)["phase"] == "done", "the bootstrapper is done")
    found = cluster.status(spare)
    assert found["healthy"]
    assert found["resumed"] == 1
    assert cluster.log(spare).count("joining node=") == 1
