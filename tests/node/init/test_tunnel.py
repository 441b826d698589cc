"""An init installs the tunnel: on the node before kubeadm init, in the cluster after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootbridge.bootstrap.render import apiserver_manifest
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.node import node_paths
from bootbridge.node.init import tunnel
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.kubeadm import documents
from tests.node.kubeadm.examples import ADDRESSES, FAMILIES, instance, spec
from tests.support.bootstrap_node import MANIFEST
from tests.support.fake_cluster import FakeCluster

WITH_TUNNEL: dict[str, Any] = {"tunnel": True, "tunnel_image": "registry.example/bootbridge:1"}
EGRESS = "/etc/kubernetes/bootbridge/apiserver/egress-selector.yaml"
SERVER_POD = f"{node_paths.MANIFESTS}/konnectivity-server-pod.yaml"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root = tmp_path / "root"
    (root / "run").mkdir(parents=True)
    return Host(root)


@pytest.fixture
def api(tmp_path: Path, host: Host) -> Iterator[FakeCluster]:
    # No nodes: no kubelet would stop their agents.
    fake = FakeCluster(tmp_path, nodes=())
    yield fake
    fake.close()


def kubeadm_has_run(host: Host, api: FakeCluster) -> None:
    """Writes the API server manifest with the patch applied, and the admin kubeconfig."""
    plan = tunnel.installed_plan(host)
    assert plan is not None
    plain = MANIFEST.format(port=api.port, backend="none").encode()
    patched = apiserver_manifest.add(plain, apiserver_manifest.egress_setting(plan), "manifest")
    host.write(f"{node_paths.MANIFESTS}/kube-apiserver.yaml", Asset(patched, 0o600))
    host.write(node_paths.ADMIN_KUBECONFIG, Asset(json.dumps(api.kubeconfig()).encode(), 0o600))


# --- the plan


@pytest.mark.parametrize("families", FAMILIES)
def test_the_plan_has_the_networks_of_the_cluster_spec(families: str) -> None:
    plan = tunnel.plan_for(spec(families, **WITH_TUNNEL), instance(families))
    assert tuple(map(str, plan.node_ips)) == ADDRESSES[families]
    assert tuple(map(str, plan.networks.service)) == spec(families).service_subnets
    assert tuple(str(network.cidr) for network in plan.networks.cluster) == spec(families).pod_subnets
    assert (plan.image.reference, plan.image.is_ours) == ("registry.example/bootbridge:1", True)


def test_the_plan_has_default_networks_without_subnets_in_the_spec() -> None:
    plan = tunnel.plan_for(spec(service_subnets=(), pod_subnets=(), **WITH_TUNNEL), instance())
    assert tuple(map(str, plan.networks.service)) == ("10.96.0.0/12",)


# --- installation


async def test_before_kubeadm_init_the_node_resources_and_the_patch_are_installed(host: Host) -> None:
    events: list[StageEvent] = []
    plan = tunnel.plan_for(spec(**WITH_TUNNEL), instance())
    await tunnel.install_on_node(host, plan, events.append)
    assert host.exists(EGRESS)
    assert host.exists(SERVER_POD)
    assert tunnel.installed_plan(host) == plan
    assert host.mode(node_paths.PATCHES) == 0o700
    patch = json.loads(host.read(tunnel.PATCH) or b"")
    assert {entry["op"] for entry in patch} == {"add"}
    assert f"--egress-selector-config-file={EGRESS}" in [entry["value"] for entry in patch]
    assert (events[0].state, events[-1].state) == ("started", "done")
    assert any(event.state == "output" for event in events)


def test_the_egress_setting_is_in_the_static_pod_and_not_in_the_cluster_configuration() -> None:
    """On another control plane socket and file do not exist, and its kube-apiserver would not start."""
    made = documents.dump(
        documents.init_documents(spec(**WITH_TUNNEL), instance(), patches=node_paths.PATCHES)
    )
    assert b"egress-selector" not in made
    assert next(yaml.safe_load_all(made))["patches"] == {"directory": node_paths.PATCHES}


async def test_after_kubeadm_init_the_cluster_resources_are_installed(host: Host, api: FakeCluster) -> None:
    plan = tunnel.plan_for(spec(**WITH_TUNNEL), instance())
    await tunnel.install_on_node(host, plan, lambda event: None)
    kubeadm_has_run(host, api)
    await tunnel.install_in_cluster(host, plan, lambda event: None)
    assert {"daemonsets", "secrets"} <= {
        plural for plural, namespace, _ in api.objects if namespace == plan.namespace
    }


def test_without_a_tunnel_there_is_no_installed_plan(host: Host) -> None:
    assert tunnel.installed_plan(host) is None
