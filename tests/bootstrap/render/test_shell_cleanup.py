"""The removal on a node: complete, bounded in time, repeatable, and honest in its receipt."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootbridge.bootstrap.install import receipt
from bootbridge.bootstrap.plan.plan import Plan
from tests.bootstrap.render.shell_node import Network, Node, needs_node

LAY = "bootbridge_setup\nbootbridge_manifests"
CLEANUP = "bootbridge_cleanup"
# As bootkube.sh ends: its marker must come, whatever happened before.
END = f"{CLEANUP}\ntouch /opt/openshift/.bootkube.done"
# A server that goes on for a moment after its manifest is gone, as the kubelet's does, then closes its port.
SERVER = """
import os, socket, sys, time
manifest, stay = sys.argv[1], float(sys.argv[2])
listener = socket.create_server(("::", 8091), family=socket.AF_INET6, dualstack_ipv6=True)
print("up", flush=True)
while os.path.exists(manifest): time.sleep(0.05)
time.sleep(stay)
"""
pytestmark = needs_node


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    network.interface("nic0", "10.0.0.5/24")
    yield network
    network.remove()


@pytest.fixture
def node(tmp_path: Path, network: Network) -> Node:
    return Node(tmp_path / "node", network, Plan(key_kind="ecdsa-p256"))


def create_objects(node: Node) -> None:
    """What cluster-bootstrap makes of the manifests."""
    paths, plan = node.plan.paths, node.plan
    for kind, name, manifest in (
        ("namespace", plan.namespace, paths.namespace_manifest),
        ("secret", plan.secret_name, paths.secret_manifest),
        ("daemonset", plan.daemonset_name, paths.daemonset_manifest),
    ):
        place = node.root / "cluster" / kind / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(node.path(manifest).read_bytes())


def objects(node: Node) -> list[str]:
    kinds = ("daemonset", "secret", "namespace")
    return [
        path.name for kind in kinds for path in (node.root / "cluster" / kind).glob("*") if not path.suffix
    ]


def receipt_of(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.path(node.plan.paths.receipt).read_text())
    return found


def whats(items: list[dict[str, str]]) -> list[str]:
    return [item["name"] for item in items]


def test_everything_that_was_laid_is_gone_and_nothing_else(node: Node) -> None:
    """Files are as before the tunnel was laid, but for the receipt; what is not ours stays."""
    before = node.files()
    stranger = node.root / "cluster/secret/somebody-elses"
    node.run_checked(LAY)
    create_objects(node)
    stranger.write_text("kind: Secret\n")
    node.path(node.plan.paths.socket).touch()

    node.run_checked(END)

    after = node.files()
    gone = set(before) - set(after)
    assert gone == {node.plan.paths.egress_config}
    assert set(after) - set(before) == {
        node.plan.paths.receipt,
        f"{node.plan.paths.state}/konnectivity-cleanup.done",
        "/opt/openshift/.bootkube.done",
    }
    assert objects(node) == ["somebody-elses"]
    assert not any(b"PRIVATE KEY" in content for _, content in after.values())


def test_the_receipt_says_what_was_there_and_went_in_pythons_own_form(node: Node) -> None:
    """`down` writes the same document, so one reader does for both."""
    node.run_checked(LAY)
    create_objects(node)
    node.run_checked(END)
    written = receipt_of(node)
    blank = receipt.Receipt(node.plan, recorded=True, written_at=receipt.datetime.now()).document()

    assert list(written) == list(blank)
    assert written["plan"] == blank["plan"]
    assert (written["version"], written["clean"], written["remains"]) == (1, True, [])
    assert written["writtenBy"] == "bootbridge_cleanup"
    assert written["found"] == written["removed"]
    namespace = node.plan.namespace
    assert whats(written["removed"])[:3] == [
        f"DaemonSet {namespace}/konnectivity-agent",
        f"Secret {namespace}/konnectivity-agent-certs",
        f"Namespace {namespace}",
    ]
    assert {node.plan.paths.server_pod, node.plan.paths.tls} <= set(whats(written["removed"]))
    assert {item["resource"] for item in written["found"]} <= set(receipt.RESOURCE_NAMES)


def test_the_stage_is_recorded(node: Node) -> None:
    """As one that worked."""
    node.run_checked(LAY)
    node.run_checked(END)

    assert node.records()[-2:] == ["start konnectivity-cleanup", "success konnectivity-cleanup"]


def test_objects_go_in_order_without_waiting_and_with_a_time_limit(node: Node) -> None:
    """DaemonSet, Secret, namespace; each by label, in our namespace or by our name."""
    node.run_checked(LAY)
    create_objects(node)
    node.run_checked(END)
    deleted = [call.split() for call in node.calls("oc") if " delete " in call]

    assert [words[words.index("delete") + 1] for words in deleted] == ["daemonset", "secret", "namespace"]
    for words in deleted:
        assert {"--wait=false", "--ignore-not-found", f"--selector={node.plan.selector}"} <= set(words)
        assert any(word.startswith("--request-timeout=") for word in words)
    assert f"--field-selector=metadata.name={node.plan.namespace}" in deleted[2]


def test_twice_is_fine_and_keeps_the_receipt(node: Node) -> None:
    """The second time there is nothing to do."""
    node.run_checked(LAY)
    node.run_checked(END)
    first = receipt_of(node)

    assert "removed already" in node.run_checked(END)
    assert receipt_of(node) == first


def test_a_node_on_which_nothing_was_ever_laid_is_fine(node: Node) -> None:
    """Only the file that came with the ignition is there to be removed."""
    node.run_checked(END)

    assert receipt_of(node)["clean"] is True
    assert whats(receipt_of(node)["found"]) == [node.plan.paths.egress_config]


def test_half_a_tunnel_is_removed_as_well(node: Node) -> None:
    """After a bootstrap that failed early, with the API never up."""
    (node.root / "cluster/down").touch()
    node.run_checked("bootbridge_setup")

    node.run_checked(END)

    written = receipt_of(node)
    assert written["clean"] is True
    assert "the API does not answer" in written["warnings"][0]
    assert not node.path(node.plan.paths.tls).exists()


def test_by_hand_it_works_without_the_installers_libraries(node: Node) -> None:
    """For a bootstrap that was given up."""
    node.run_checked(LAY)

    done = node.run(f"{node.plan.paths.hook_script} cleanup")

    assert done.returncode == 0, done.stderr
    assert receipt_of(node)["clean"] is True


def test_a_tunnel_that_is_laid_again_can_be_removed_again(node: Node) -> None:
    """The marker of an earlier removal does not count any more."""
    node.run_checked(LAY)
    node.run_checked(CLEANUP)
    node.run_checked(LAY)
    assert not node.path(node.plan.paths.receipt).exists()

    node.run_checked(END)

    assert receipt_of(node)["clean"] is True
    assert node.plan.paths.server_pod in whats(receipt_of(node)["removed"])


# --- when something is in the way


def test_an_api_that_is_down_does_not_keep_the_node_from_being_cleaned(node: Node) -> None:
    """The files go, and the receipt admits that nobody knows of the namespace."""
    node.run_checked(LAY)
    (node.root / "cluster/down").touch()

    node.run_checked(END)

    written = receipt_of(node)
    assert written["clean"] is False
    assert [item["resource"] for item in written["remains"]] == ["namespace"]
    assert not node.path(node.plan.paths.tls).exists()
    assert node.path("/opt/openshift/.bootkube.done").exists()
    assert node.records()[-1] == "failure konnectivity-cleanup"


def test_an_api_that_hangs_is_waited_for_once(node: Node) -> None:
    """The limits are what the settings say; here they are made short."""
    node.run_checked(LAY)
    (node.root / "cluster/hangs").touch()
    started = time.monotonic()

    node.run_checked(f"BOOTBRIDGE_OC_SECONDS=5\n{END}")

    assert time.monotonic() - started < 60
    assert len(node.calls("oc")) == 1
    assert node.path("/opt/openshift/.bootkube.done").exists()


def test_a_namespace_that_never_ends_does_not_hold_up_the_bootstrap(node: Node) -> None:
    """It is told as remaining, with the reason, and another call later looks again."""
    node.run_checked(LAY)
    create_objects(node)
    (node.root / "cluster/finalises-for-ever").touch()

    node.run_checked(f"BOOTBRIDGE_OBJECTS_END_SECONDS=1\n{END}")

    first = receipt_of(node)
    assert first["clean"] is False
    assert first["remains"] == [
        {
            "resource": "namespace",
            "name": f"Namespace {node.plan.namespace}",
            "reason": "the cluster is still finalising it",
        }
    ]
    assert node.records()[-1] == "success konnectivity-cleanup"
    (node.root / "cluster/finalises-for-ever").unlink()
    node.run_checked(END)
    second = receipt_of(node)
    assert second["clean"] is True
    assert set(whats(first["found"])) <= set(whats(second["removed"]))


def test_a_refused_deletion_is_warned_of_and_the_rest_goes_on(node: Node) -> None:
    """Also in the receipt."""
    node.run_checked(LAY)
    create_objects(node)
    (node.root / "cluster/forbids").touch()

    node.run_checked(f"BOOTBRIDGE_OBJECTS_END_SECONDS=1\n{END}")

    written = receipt_of(node)
    assert [item["resource"] for item in written["remains"]] == ["daemonset", "secret", "namespace"]
    assert "oc could not delete the DaemonSet" in written["warnings"]
    assert not node.path(node.plan.paths.server_pod).exists()
    assert node.records()[-1] == "failure konnectivity-cleanup"


def test_a_record_that_cannot_be_written_does_not_hold_up_the_bootstrap(node: Node) -> None:
    """As on a full disk."""
    node.run_checked(LAY)
    (node.root / "cluster/records").unlink()
    (node.root / "cluster/records").mkdir()

    node.run_checked(END)

    assert receipt_of(node)["clean"] is True


def start_server(node: Node, stay: float) -> subprocess.Popen[str]:
    manifest = str(node.path(node.plan.paths.server_pod))
    command = node.network.command([sys.executable, "-c", SERVER, manifest, str(stay)])
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    return server


def test_the_servers_end_is_waited_for_before_its_socket_and_certificates_go(node: Node) -> None:
    """A server that still runs would make its socket again."""
    node.run_checked(LAY)
    server = start_server(node, stay=1.0)

    node.run_checked(END)

    assert server.poll() is not None or server.wait(5) == 0
    assert receipt_of(node)["clean"] is True


def test_a_server_that_does_not_end_is_told_as_remaining(node: Node) -> None:
    """After a bounded wait."""
    node.run_checked(LAY)
    server = start_server(node, stay=600)
    try:
        node.run_checked(f"BOOTBRIDGE_SERVER_END_SECONDS=1\n{END}")
    finally:
        server.kill()
        server.wait()

    written = receipt_of(node)
    assert written["clean"] is False
    assert whats(written["remains"]) == ["TCP port 8091"]


def test_an_interrupted_removal_is_told_of_in_the_next_receipt(node: Node) -> None:
    """What the first one removed before it ended is not forgotten."""
    node.run_checked(LAY)
    (node.root / "tools/oc").unlink()
    killed = "bootbridge_verify_objects() { kill -KILL $BASHPID; }"
    node.run(f". {node.plan.paths.hook_script}\n{killed}\nbootbridge_cleanup")
    assert not node.path(node.plan.paths.receipt).exists()
    assert not node.path(node.plan.paths.tls).exists()

    node.run_checked(END)

    assert node.plan.paths.tls in whats(receipt_of(node)["removed"])
