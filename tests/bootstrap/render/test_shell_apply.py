"""Runs the loop that applies the agents' objects beside cluster-bootstrap, with refusals and restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bootbridge.bootstrap.plan.plan import Plan
from tests.bootstrap.render.shell_node import BOOT_SECONDS, Network, Node, needs_node

START = "bootbridge_setup\nbootbridge_manifests"
END = "bootbridge_cleanup\ntouch /opt/openshift/.bootkube.done"
pytestmark = needs_node


@pytest.fixture
def network(network: Network) -> Network:
    network.interface("nic0", "10.0.0.5/24")
    return network


@pytest.fixture
def node(tmp_path: Path, network: Network) -> Node:
    return Node(tmp_path / "node", network, Plan(key_kind="ecdsa-p256"))


def results(node: Node) -> dict[str, dict[str, Any]]:
    lines = map(json.loads, node.path(node.plan.paths.agent_objects).read_text().splitlines())
    return {line["name"].split()[0]: line for line in lines}


def exists(node: Node, kind: str) -> bool:
    return bool(list((node.root / "cluster" / kind).glob("*")))


def test_the_objects_are_applied_when_the_api_server_answers(node: Node) -> None:
    """Namespace first. They are not in cluster-bootstrap's directory."""
    (node.root / "cluster/down-until").write_text(str(BOOT_SECONDS + 300))

    node.run_checked(f"{START}\nwait")

    assert {each["result"] for each in results(node).values()} == {"applied"}
    assert 300 <= node.now() <= 310
    assert not [path for path in node.path("/opt/openshift/manifests").iterdir() if "bootbridge" in path.name]
    applied = [call for call in node.calls("oc") if " apply " in call][-3:]
    assert [call.rpartition("/")[2] for call in applied] == [
        *("bootbridge-namespace.yaml", "bootbridge-agent-secret.yaml", "bootbridge-agent-daemonset.yaml")
    ]
    assert all("--server-side" in call for call in applied), "the key is not copied into an annotation"


@pytest.mark.parametrize("kind", ["DaemonSet", "Secret", "Namespace"])
def test_a_refused_object_does_not_hold_the_bootstrap(node: Node, kind: str) -> None:
    """The reason is in the log, in the stage record and in the receipt."""
    (node.root / f"cluster/refuses-{kind.lower()}").touch()

    several = """*'"result":"refused","attempts":'@([3-9]|[1-9][0-9])*"""
    refused = f"until [[ $(cat {node.plan.paths.agent_objects}) == {several} ]]; do /usr/bin/sleep 0.02; done"
    logged = node.run_checked(f"{START}\n{refused}\n{END}")

    reason = f'Error from server (Forbidden): {kind.lower()} "'
    assert f"refused: {reason}" in logged
    assert logged.count(f"refused: {reason}") == 1, "once, not at every attempt"
    assert [line for line in node.records() if "apply" in line] == [
        *("start konnectivity-agent-apply", "failure konnectivity-agent-apply")
    ]
    receipt = json.loads(node.path(node.plan.paths.receipt).read_text())
    assert receipt["clean"] is True
    refused = [text for text in receipt["warnings"] if text.startswith(kind)]
    assert "was not applied in" in refused[0]
    assert reason in refused[0]
    assert node.path("/opt/openshift/.bootkube.done").exists()


def test_applied_objects_are_a_successful_stage(node: Node) -> None:
    node.run_checked(f"{START}\nwait\n{END}")

    assert [line for line in node.records() if "apply" in line] == [
        *("start konnectivity-agent-apply", "success konnectivity-agent-apply")
    ]


def test_an_object_that_is_accepted_later_is_applied(node: Node) -> None:
    """As when a quota or a webhook is corrected."""
    (node.root / "cluster/refuses-daemonset").touch()
    (node.root / f"cluster/at-{BOOT_SECONDS + 100}").write_text("rm -f /cluster/refuses-daemonset\n")

    node.run_checked(f"{START}\nwait")

    assert exists(node, "daemonset")
    assert results(node)["DaemonSet"]["attempts"] == 21


def test_the_loop_ends_at_its_bound(node: Node) -> None:
    (node.root / "cluster/down").touch()

    logged = node.run_checked(f"BOOTBRIDGE_APPLY_SECONDS=200\n{START}\nwait")

    assert "gave up applying the agents' objects after 200s" in logged
    assert node.now() == 200


def test_nothing_is_created_after_the_removal(node: Node) -> None:
    """The removal ends the loop."""
    (node.root / "cluster/refuses-daemonset").touch()

    node.run_checked(f"{START}\n{END}\nrm -f /cluster/refuses-daemonset\nwait")

    calls = node.calls("oc")
    last_apply = max((at for at, call in enumerate(calls) if " apply " in call), default=-1)
    assert last_apply < min(at for at, call in enumerate(calls) if " get " in call)
    assert not any(exists(node, kind) for kind in ("namespace", "secret", "daemonset"))
    assert not (node.root / "run/bootbridge-apply.pid").exists()


def test_the_removal_of_an_abandoned_bootstrap_ends_the_loop(node: Node) -> None:
    """Also if an operator calls the script while bootkube.sh runs."""
    (node.root / "cluster/refuses-namespace").touch()
    abandoned = f"{node.plan.paths.hook_script} cleanup --abandoned"

    node.run_checked(f"{START}\n{abandoned}\nif kill -0 $!; then exit 9; fi")

    assert not (node.root / "run/bootbridge-apply.pid").exists()
    assert json.loads(node.path(node.plan.paths.receipt).read_text())["clean"] is True


def test_the_removal_waits_for_a_request_in_progress(node: Node) -> None:
    """Otherwise the object would be created after the removal."""
    (node.root / "cluster/slow-daemonset").touch()

    requested = "until [[ -e /cluster/followers/oc ]]; do /usr/bin/sleep 0.02; done"
    node.run_checked(f"{START}\n{requested}\n{END}\nsleep 60\nwait")

    assert not any(exists(node, kind) for kind in ("namespace", "secret", "daemonset"))
    found = json.loads(node.path(node.plan.paths.receipt).read_text())["found"]
    assert f"DaemonSet {node.plan.namespace}/{node.plan.daemonset_name}" in {item["name"] for item in found}


def test_after_cluster_bootstrap_a_restart_installs_nothing(node: Node) -> None:
    """For example a reboot while bootkube.sh waits for etcd: the kube-apiserver does not start again."""
    node.run_checked(f"{START}\nwait")
    node.path(node.plan.paths.cluster_bootstrap_marker).touch()
    (node.root / "cluster/oc.calls").unlink()
    node.reboot()

    node.run_checked(f"{START}\nwait\n{END}")

    assert not [call for call in node.calls("oc") if " apply " in call]
    assert json.loads(node.path(node.plan.paths.receipt).read_text())["clean"] is True

    # The node is rebooted again, just before bootkube.sh writes its marker.
    node.run_checked(START)
    assert not node.path(node.plan.paths.server_pod).exists()
    assert json.loads(node.path(node.plan.paths.receipt).read_text())["clean"] is True
