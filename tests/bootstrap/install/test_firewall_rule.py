"""`up --firewall` and `down`: the rule is removed where it was created."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootbridge.bootstrap.install import install_record
from bootbridge.bootstrap.install.context import InstallContext
from bootbridge.bootstrap.install.resources.firewall import FirewallRule
from bootbridge.bootstrap.plan.cloud import CloudSettings
from bootbridge.bootstrap.plan.plan import Flavour, Plan, Platform, ProxyImage
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from tests.bootstrap.firewall.fake_clouds import CLUSTER
from tests.bootstrap.firewall.test_runner import NAME, Cloud, cloud

__all__ = ["cloud"]

PLAN = Plan(
    flavour=Flavour.KUBEADM, image=ProxyImage("bootbridge", "i"), platform=Platform.GCP, infra_id=CLUSTER
)


def test_down_removes_the_rule_where_up_created_it(cloud: Cloud, tmp_path: Path) -> None:
    """Although the CLI's default project is another one by then, and the network's was never given."""
    state = cloud.state
    state["gcp"]["network_project"] = "p2"
    cloud.state = state
    before = cloud.state
    host = Host(str(tmp_path / "node"))
    host.path(PLAN.paths.state).mkdir(parents=True)
    FirewallRule(InstallContext(PLAN, host, firewall=True)).apply()
    assert NAME in cloud.state["gcp"]["rules"]["p2"]
    record = install_record.load(host, PLAN)
    assert record
    assert record.cloud == CloudSettings(project="p1", network_project="p2", network=f"{CLUSTER}-network")
    cloud.state = cloud.state | {"gcp": cloud.state["gcp"] | {"default_project": "p3"}}

    FirewallRule(InstallContext(PLAN, host)).remove()

    assert cloud.state["gcp"] == before["gcp"] | {"default_project": "p3"}


def test_up_refuses_a_firewall_that_the_operator_manages(tmp_path: Path) -> None:
    """As install-config says."""
    settings = CloudSettings(firewall_owner="platform.gcp.firewallRulesManagement: Unmanaged")
    plan = Plan(platform=Platform.GCP, infra_id=CLUSTER, cloud=settings)
    with pytest.raises(OperatorError, match="--firewall: not supported on platform gcp: install-config has"):
        FirewallRule(InstallContext(plan, Host(str(tmp_path)), firewall=True)).apply()
