"""Agents that authenticate with a service account token, verified by TokenReview."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from bootbridge.common.files import Asset
from bootbridge.common.yaml_text import to_yaml
from bootbridge.demo.webhook import DENIAL
from bootbridge.lab import workloads
from tests.e2e import agent_token_manifests
from tests.support.lab import GUARDED, OURS, Cluster, Json, Pairing

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", autouse=True)
def agents(cluster: Cluster) -> Iterator[Json]:
    """Installs the tunnel with tokens instead of client certificates; returns the original DaemonSet."""
    cluster.install_tunnel(_ours(cluster.pairing))
    plan = cluster.plan
    found = cluster.get("daemonset", plan.daemonset_name, f"--namespace={plan.namespace}")
    manifest = cluster.lab.file("bootstrap", plan.paths.server_pod).read_bytes()
    cluster.end_agents()
    _write_server_pod(cluster, to_yaml(agent_token_manifests.server_pod(yaml.safe_load(manifest), plan)))
    cluster.until(lambda: "--authentication-audience=" in cluster.command_lines(), "the server wants tokens")
    cluster.apply(agent_token_manifests.account(plan), agent_token_manifests.daemon_set(found))
    cluster.rolled_out(plan.namespace, plan.daemonset_name)
    yield found
    cluster.end_agents()
    _write_server_pod(cluster, manifest)
    cluster.until(
        lambda: "--authentication-audience=" not in cluster.command_lines(), "that server has ended"
    )
    cluster.repeat_up()


def test_agents_with_the_expected_account_connect(cluster: Cluster) -> None:
    """With at least one TokenReview each; webhook calls go through them."""
    cluster.until(cluster.agents_connected, "the agents of all nodes are connected")
    assert _reviews(cluster, "authenticated") >= len(cluster.lab.layout.cluster_nodes)
    done = cluster.create(workloads.pod("denied", GUARDED, {"deny": "true"}), "--dry-run=server")
    assert DENIAL in done.stderr


def test_agent_with_another_account_is_rejected(cluster: Cluster, agents: Json) -> None:
    """Although its token is valid."""
    inside = f"--namespace={cluster.plan.namespace}"
    before = _reviews(cluster, "")
    welcome = _reviews(cluster, "authenticated")
    cluster.apply(agent_token_manifests.impostor(agents))
    cluster.until(lambda: _reviews(cluster, "") - before > 2, "the impostors have shown their tokens")
    assert _reviews(cluster, "authenticated") == welcome
    cluster.until(cluster.agents_connected, "the agents of all nodes are connected, and no other")
    cluster.kubectl("delete", "daemonset", "impostor", inside, "--cascade=orphan")
    cluster.kubectl("delete", "pods", "-l", "app=impostor", inside, "--grace-period=1", seconds=120)


def _ours(pairing: Pairing | None) -> Pairing:
    return pairing if pairing and pairing.server == pairing.agent == "our" else OURS


def _write_server_pod(cluster: Cluster, manifest: bytes) -> None:
    cluster.lab.write("bootstrap", {cluster.plan.paths.server_pod: Asset(manifest, 0o600)})


def _reviews(cluster: Cluster, result: str) -> float:
    """Returns the number of token reviews with this result; of all if `result` is empty."""
    page = cluster.on_bootstrap(f"http://127.0.0.1:{cluster.plan.ports.server_admin}/metrics")
    lines = [line for line in page.splitlines() if f'token_reviews_total{{result="{result}' in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
