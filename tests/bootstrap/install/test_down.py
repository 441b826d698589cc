"""`bootbridge down`: removes everything in order, from any state, and reports what remains."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootbridge.bootstrap.install.receipt import RESOURCE_NAMES
from bootbridge.bootstrap.render import kubeadm
from bootbridge.common.host import Host
from bootbridge.kube.errors import KubeError
from tests.support.bootstrap_node import BootstrapNode, bootstrap_node
from tests.support.fake_api_objects import Fault, failing
from tests.support.fake_api_server import drop, hang
from tests.support.process_program import until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BootstrapNode]:
    with bootstrap_node(tmp_path) as node:
        yield node


def remains(node: BootstrapNode) -> dict[str, str]:
    found: Any = node.receipt()["remains"]
    return {item["resource"]: item["reason"] for item in found}


def test_after_down_the_node_and_the_cluster_are_as_before_up(node: BootstrapNode) -> None:
    """Files, modes, sockets, ports, processes and API objects."""
    before = node.scan()
    node.up()
    during = node.scan()
    assert all(during[kind] != before[kind] for kind in before), "the scan covers every kind"
    node.down()
    assert node.scan() == before


def test_the_receipt_lists_what_was_found_and_removed(node: BootstrapNode) -> None:
    """Found and removed are equal, in the order of removal; nothing remains."""
    node.up()
    node.down()
    receipt = node.receipt()
    assert (receipt["version"], receipt["clean"], receipt["remains"]) == (1, True, [])
    assert receipt["found"] == receipt["removed"]
    removed: Any = receipt["removed"]
    named = list(dict.fromkeys(item["resource"] for item in removed))
    assert named == [name for name in RESOURCE_NAMES if name != "firewall"]
    assert receipt["plan"] == {
        "flavour": "kubeadm",
        "platform": "none",
        "infraID": "",
        "namespace": "bootstrap-konnectivity",
        "agentPort": node.plan.ports.agent,
        "recorded": True,
    }


def test_the_order_of_removal(node: BootstrapNode) -> None:
    """DaemonSet, role, Secret, namespace; then the kube-apiserver's setting, and only then the server."""
    node.up()
    seen = len(node.kubelet.history)
    node.down()
    deleted = [call.path.rsplit("/", 2)[-2] for call in node.api.calls_to("DELETE")]
    kinds = ["daemonsets", "pods", "rolebindings", "roles", "secrets", "namespaces"]
    assert list(dict.fromkeys(deleted)) == kinds
    assert node.kubelet.history[seen:] == [
        "ended kube-apiserver",
        "started kube-apiserver",
        "ended konnectivity-server",
    ]


def test_a_second_down_finds_nothing(node: BootstrapNode) -> None:
    before = node.scan()
    node.up()
    node.down()
    node.down()
    assert "Nothing was installed" in node.output
    assert node.receipt()["found"] == []
    assert node.scan() == before


def test_a_server_that_the_kubelet_starts_late_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet read the manifest before the removal, and stops the server at its next sync."""
    with bootstrap_node(tmp_path, initialised=False) as node:
        before = node.scan()
        node.kubelet.may_start.clear()
        node.up()
        until(lambda: node.kubelet.about_to_start, "the kubelet has read the manifest")
        remove_tree = Host.remove_tree

        def start_late(host: Host, path: str) -> None:
            monkeypatch.setattr(Host, "remove_tree", remove_tree)
            remove_tree(host, path)
            node.kubelet.may_start.set()
            until(lambda: node.kubelet.pids, "the kubelet has started the server")

        monkeypatch.setattr(Host, "remove_tree", start_late)
        node.down()
        assert "started konnectivity-server" in node.kubelet.history
        assert node.scan() == before


def test_down_without_up_changes_nothing(node: BootstrapNode) -> None:
    before = node.scan()
    node.down()
    assert node.scan() == before


def test_a_namespace_stuck_in_finalisation_remains_with_the_reason(node: BootstrapNode) -> None:
    """Everything else is removed; the receipt quotes the condition of the namespace."""
    node.up()
    node.api.stuck[node.plan.namespace] = "Some resources are remaining: widgets.example.com has 1"
    assert node.run("down", "--timeout", "2s") == 2
    assert "widgets.example.com has 1" in remains(node)["namespace"]
    assert set(remains(node)) == {"namespace", "record"}
    assert not node.path(node.plan.paths.server_pod).exists()
    assert not node.path(node.plan.paths.tls).exists()
    node.api.stuck.clear()
    node.down()
    assert not node.path(node.plan.paths.state).exists()


def test_up_waits_until_the_old_namespace_is_deleted(node: BootstrapNode) -> None:
    """A terminating namespace accepts no objects."""
    node.up()
    node.api.stuck[node.plan.namespace] = "finalizers remaining: example.com/slow in 1 resource instances"
    assert node.run("down", "--timeout", "1s") == 2
    assert node.run("up", "--timeout", "10s") == 1
    assert "still being deleted" in node.output
    assert "example.com/slow" in node.output
    node.api.stuck.clear()
    node.up()


@pytest.mark.parametrize("silence", [drop, hang])
def test_an_unreachable_api_server_does_not_stop_the_removal_on_the_node(
    node: BootstrapNode, silence: Fault
) -> None:
    """What could not be verified in the cluster is listed as remaining."""
    node.up()
    node.api.faults.append(silence)
    assert node.run("down", "--timeout", "2s") == 2
    assert {"daemonset", "secret", "namespace"} <= set(remains(node))
    assert "verification failed" in remains(node)["namespace"]
    assert not node.path(node.plan.paths.server_pod).exists()
    assert not node.path(node.plan.paths.socket_directory).exists()
    node.api.faults.clear()
    node.down()


def test_a_forbidden_deletion_is_a_warning(node: BootstrapNode) -> None:
    """The rest is removed."""
    node.up()
    refusal = KubeError(403, "Forbidden", "may not delete secrets")
    node.api.faults.append(failing("DELETE", "/secrets/", refusal))
    # The Secret is deleted with its namespace.
    node.down()
    warnings: Any = node.receipt()["warnings"]
    assert any("may not delete secrets" in text for text in warnings)


@pytest.mark.parametrize("record", [None, b"{ not json"])
def test_without_a_plan_record_default_names_are_used(node: BootstrapNode, record: bytes | None) -> None:
    """Names and paths do not depend on the record."""
    before = node.scan()
    node.up()
    path = node.path(node.plan.paths.plan_record)
    path.unlink()
    if record is not None:
        path.write_bytes(record)
    node.down("--agent-port", str(node.plan.ports.agent))
    plan: Any = node.receipt()["plan"]
    assert plan["recorded"] is False
    assert node.scan() == before


def test_later_changes_of_the_manifest_are_kept(node: BootstrapNode) -> None:
    node.up()
    text = node.manifest.read_text()
    node.manifest.write_text(text.replace("kube-apiserver:v1.33.0", "kube-apiserver:v1.33.1"))
    node.down()
    left = node.manifest.read_text()
    assert "v1.33.1" in left
    assert "this comment must survive" in left
    assert "bootbridge" not in left
    assert "egress" not in left
    assert stat.S_IMODE(node.manifest.stat().st_mode) == 0o600


def test_the_setting_is_also_removed_from_kubeadms_configuration(node: BootstrapNode) -> None:
    """Otherwise the next `kubeadm upgrade` would restore it."""
    own = {"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "clusterName": "c"}
    merged = kubeadm.merge(yaml.safe_dump(own).encode(), node.plan).decode()
    config = {
        "metadata": {"name": "kubeadm-config", "namespace": "kube-system"},
        "data": {"ClusterConfiguration": merged},
    }
    node.api.call("PATCH", "/api/v1/namespaces/kube-system/configmaps/kubeadm-config", config)
    node.up()
    node.down()
    held = node.api.held("configmaps", "kube-system", "kubeadm-config")
    assert held is not None
    assert yaml.safe_load(held["data"]["ClusterConfiguration"]) == own


def test_a_socket_directory_with_foreign_files_remains(node: BootstrapNode) -> None:
    node.up()
    foreign = node.path(node.plan.paths.socket_directory) / "notes"
    foreign.write_text("mine")
    assert node.run("down", "--timeout", "1s") == 2
    assert "files that are not ours" in remains(node)["socket"]
    assert foreign.read_text() == "mine"


def test_a_dry_run_lists_what_exists_and_changes_nothing(node: BootstrapNode) -> None:
    node.up()
    before = node.scan()
    node.down("--dry-run")
    assert "DaemonSet bootstrap-konnectivity/konnectivity-agent" in node.stdout
    assert node.scan() == before


def test_an_unwritable_receipt_is_a_warning(node: BootstrapNode) -> None:
    before = node.scan()
    node.up()
    node.run("down", "--receipt", "/proc/no/receipt.json")
    assert "receipt not written" in node.output
    assert node.scan() == before


@pytest.mark.parametrize("at", [1, 3, 6, 10, 13])
def test_a_killed_up_can_be_removed(node: BootstrapNode, at: int) -> None:
    """Killed at a few points; the slow test below covers all of them."""
    _crash_then_down(node, at)


@pytest.mark.slow
def test_up_killed_after_each_change_can_be_continued_and_removed(tmp_path: Path) -> None:
    with bootstrap_node(tmp_path) as node:
        for at in range(1, 40):
            if not _crash_then_down(node, at):
                break
        assert at > 15, "there are more changes than these"
        for at in range(2, 16, 4):
            assert _crash(node, "up", at) == -9
            node.up()
            assert node.run("status") == 0, node.output
            node.down()


@pytest.mark.slow
def test_down_killed_after_each_change_can_be_continued(tmp_path: Path) -> None:
    with bootstrap_node(tmp_path) as node:
        before = node.scan()
        for at in range(1, 40):
            node.up()
            code = _crash(node, "down", at)
            node.down()
            assert node.scan() == before, f"after change {at}"
            if code == 0:
                break
        assert at > 8, "there are more changes than these"


def _crash(node: BootstrapNode, verb: str, at: int) -> int:
    return node.run(verb, env={"BOOTBRIDGE_CRASH_AT": str(at)})


def _crash_then_down(node: BootstrapNode, at: int) -> bool:
    before = node.scan()
    code = _crash(node, "up", at)
    assert code in (-9, 0), node.output
    node.down()
    assert node.scan() == before, f"after change {at}"
    return code == -9


def test_json_output_is_the_receipt(node: BootstrapNode) -> None:
    node.up()
    node.down("--json")
    assert json.loads(node.stdout) == node.receipt()
    assert os.path.exists(node.path(node.plan.paths.receipt))
