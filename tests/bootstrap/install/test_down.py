"""`bootbridge down`: everything goes, in order, whatever state it is in, and what remains is told."""

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
from tests.support.bootstrap_node import BootstrapNode, bootstrap_node
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
    assert all(during[kind] != before[kind] for kind in before), "the scan sees every kind of thing"
    node.down()
    assert node.scan() == before


def test_the_receipt_tells_what_was_there_and_that_it_is_gone(node: BootstrapNode) -> None:
    """Found and removed are the same, part by part in the order of removal; nothing remains."""
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


def test_removal_goes_from_daemonset_to_certificates(node: BootstrapNode) -> None:
    """In the cluster DaemonSet, Secret, namespace; then the kube-apiserver, and only then the server."""
    node.up()
    seen = len(node.kubelet.history)
    node.down()
    deleted = [path.rsplit("/", 2)[-2] for method, path in node.api.requests if method == "DELETE"]
    assert list(dict.fromkeys(deleted)) == ["daemonsets", "pods", "secrets", "namespaces"]
    assert node.kubelet.history[seen:] == [
        "ended kube-apiserver",
        "started kube-apiserver",
        "ended konnectivity-server",
    ]


def test_down_twice_is_fine(node: BootstrapNode) -> None:
    """The second finds nothing and says so."""
    before = node.scan()
    node.up()
    node.down()
    node.down()
    assert "Nothing of the tunnel was there" in node.output
    assert node.receipt()["found"] == []
    assert node.scan() == before


def test_a_server_that_the_kubelet_starts_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had read the manifest before that was removed, and ends the server as soon as it looks again."""
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


def test_down_without_up_touches_nothing(node: BootstrapNode) -> None:
    before = node.scan()
    node.down()
    assert node.scan() == before


def test_a_namespace_stuck_in_finalisation_is_told_and_not_waited_for_long(node: BootstrapNode) -> None:
    """Everything else goes; the namespace remains, with the cluster's own words, and exit code 2."""
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


def test_up_waits_for_the_old_namespace_to_go(node: BootstrapNode) -> None:
    """What is being finalised takes no objects; the reason is said."""
    node.up()
    node.api.stuck[node.plan.namespace] = "finalizers remaining: example.com/slow in 1 resource instances"
    assert node.run("down", "--timeout", "1s") == 2
    assert node.run("up", "--timeout", "10s") == 1
    assert "still being removed" in node.output
    assert "example.com/slow" in node.output
    node.api.stuck.clear()
    node.up()


@pytest.mark.parametrize("silence", ["drop", "hang"])
def test_an_api_server_that_does_not_answer_stops_nothing_on_the_node(
    node: BootstrapNode, silence: str
) -> None:
    """The node is cleaned, and what could not be checked in the cluster is said to remain."""
    node.up()
    node.api.faults.append(lambda method, path: silence)
    assert node.run("down", "--timeout", "2s") == 2
    assert {"daemonset", "secret", "namespace"} <= set(remains(node))
    assert "cannot be checked" in remains(node)["namespace"]
    assert not node.path(node.plan.paths.server_pod).exists()
    assert not node.path(node.plan.paths.socket_directory).exists()
    node.api.faults.clear()
    node.down()


def test_missing_rights_are_a_warning_and_the_rest_goes(node: BootstrapNode) -> None:
    """One object that may not be deleted keeps nothing else."""
    node.up()
    refusal = (403, "Forbidden", "may not delete secrets")
    node.api.faults.append(
        lambda method, path: refusal if method == "DELETE" and "/secrets/" in path else None
    )
    # The namespace takes the Secret along.
    node.down()
    warnings: Any = node.receipt()["warnings"]
    assert any("may not delete secrets" in text for text in warnings)


@pytest.mark.parametrize("record", [None, b"{ not json"])
def test_without_its_record_the_default_names_are_used(node: BootstrapNode, record: bytes | None) -> None:
    """Names and paths do not depend on the record, so nothing is missed."""
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


def test_a_manifest_that_somebody_changed_since_keeps_their_change(node: BootstrapNode) -> None:
    """Only what was added is taken away."""
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


def test_the_setting_is_also_taken_out_of_what_kubeadm_remembers(node: BootstrapNode) -> None:
    """Else the next `kubeadm upgrade` would bring it back."""
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


def test_a_socket_directory_with_something_else_in_it_is_left_and_told(node: BootstrapNode) -> None:
    """What is not ours is not removed."""
    node.up()
    foreign = node.path(node.plan.paths.socket_directory) / "notes"
    foreign.write_text("mine")
    assert node.run("down", "--timeout", "1s") == 2
    assert "not ours to remove" in remains(node)["socket"]
    assert foreign.read_text() == "mine"


def test_a_dry_run_lists_what_is_there_and_touches_nothing(node: BootstrapNode) -> None:
    node.up()
    before = node.scan()
    node.down("--dry-run")
    assert "DaemonSet bootstrap-konnectivity/konnectivity-agent" in node.stdout
    assert node.scan() == before


def test_a_receipt_that_cannot_be_written_is_said_but_removal_is_done(node: BootstrapNode) -> None:
    before = node.scan()
    node.up()
    node.run("down", "--receipt", "/proc/no/receipt.json")
    assert "the receipt could not be written" in node.output
    assert node.scan() == before


@pytest.mark.parametrize("at", [1, 3, 6, 10, 13])
def test_a_killed_up_can_be_taken_away(node: BootstrapNode, at: int) -> None:
    """After kill -9 at a few places; all of them are tried by the slow test below."""
    _crash_then_down(node, at)


@pytest.mark.slow
def test_up_killed_after_each_single_deed_can_be_continued_and_taken_away(tmp_path: Path) -> None:
    """Whatever was done last, `down` finds all of it, and `up` goes on from it."""
    with bootstrap_node(tmp_path) as node:
        for at in range(1, 40):
            if not _crash_then_down(node, at):
                break
        assert at > 15, "there are more deeds than these"
        for at in range(2, 16, 4):
            assert _crash(node, "up", at) == -9
            node.up()
            assert node.run("status") == 0, node.output
            node.down()


@pytest.mark.slow
def test_down_killed_after_each_single_deed_can_be_continued(tmp_path: Path) -> None:
    with bootstrap_node(tmp_path) as node:
        before = node.scan()
        for at in range(1, 40):
            node.up()
            code = _crash(node, "down", at)
            node.down()
            assert node.scan() == before, f"after deed {at}"
            if code == 0:
                break
        assert at > 8, "there are more deeds than these"


def _crash(node: BootstrapNode, verb: str, at: int) -> int:
    return node.run(verb, env={"BOOTBRIDGE_CRASH_AT": str(at)})


def _crash_then_down(node: BootstrapNode, at: int) -> bool:
    before = node.scan()
    code = _crash(node, "up", at)
    assert code in (-9, 0), node.output
    node.down()
    assert node.scan() == before, f"after deed {at}"
    return code == -9


def test_everything_that_down_prints_as_json_is_the_receipt(node: BootstrapNode) -> None:
    node.up()
    node.down("--json")
    assert json.loads(node.stdout) == node.receipt()
    assert os.path.exists(node.path(node.plan.paths.receipt))
