"""Runs the shell's cleanup on a node: complete, with time limits, idempotent, with a true receipt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bootbridge.bootstrap.install import receipt
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.bootstrap.render.shell.script import SECONDS
from tests.bootstrap.render.shell_node import BOOT_SECONDS, Network, Node, needs_node

INSTALL = "bootbridge_setup\nbootbridge_manifests\nwait"
CLEANUP = "bootbridge_cleanup"
# The end of bootkube.sh: its marker must be written in every case.
END = f"{CLEANUP}\ntouch /opt/openshift/.bootkube.done"
pytestmark = needs_node


@pytest.fixture
def network(network: Network) -> Network:
    network.interface("nic0", "10.0.0.5/24")
    return network


@pytest.fixture
def node(tmp_path: Path, network: Network) -> Node:
    return Node(tmp_path / "node", network, Plan(key_kind="ecdsa-p256"))


def create_objects(node: Node) -> None:
    """Creates what cluster-bootstrap creates from the manifests."""
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


def names_of(items: list[dict[str, str]]) -> list[str]:
    return [item["name"] for item in items]


def test_everything_is_removed_and_nothing_else(node: Node) -> None:
    """The files are as before the installation, except for the receipt. Other objects stay."""
    before = node.files()
    other = node.root / "cluster/secret/other-secret"
    node.run_checked(INSTALL)
    create_objects(node)
    other.write_text("kind: Secret\n")
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
    assert objects(node) == ["other-secret"]
    assert not any(b"PRIVATE KEY" in content for _, content in after.values())


def test_the_receipt_has_the_format_of_down(node: Node) -> None:
    """And lists what was found and removed."""
    node.run_checked(INSTALL)
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
    assert names_of(written["removed"])[:3] == [
        f"DaemonSet {namespace}/konnectivity-agent",
        f"Secret {namespace}/konnectivity-agent-certs",
        f"Namespace {namespace}",
    ]
    assert {node.plan.paths.server_pod, node.plan.paths.tls} <= set(names_of(written["removed"]))
    assert {item["resource"] for item in written["found"]} <= set(receipt.RESOURCE_NAMES)


def test_the_stage_is_recorded(node: Node) -> None:
    node.run_checked(INSTALL)
    node.run_checked(END)

    assert node.records()[-2:] == ["start konnectivity-cleanup", "success konnectivity-cleanup"]


def test_objects_are_deleted_in_order_with_a_time_limit(node: Node) -> None:
    """DaemonSet, Secret, namespace; each by label, without waiting."""
    node.run_checked(INSTALL)
    create_objects(node)
    node.run_checked(END)
    deleted = [call.split() for call in node.calls("oc") if " delete " in call]

    assert [words[words.index("delete") + 1] for words in deleted] == ["daemonset", "secret", "namespace"]
    for words in deleted:
        assert {"--wait=false", "--ignore-not-found", f"--selector={node.plan.selector}"} <= set(words)
        assert any(word.startswith("--request-timeout=") for word in words)
    assert f"--field-selector=metadata.name={node.plan.namespace}" in deleted[2]


def test_a_second_cleanup_keeps_the_receipt(node: Node) -> None:
    node.run_checked(INSTALL)
    node.run_checked(END)
    first = receipt_of(node)

    assert "tunnel already removed" in node.run_checked(END)
    assert receipt_of(node) == first


def test_cleanup_without_an_installation(node: Node) -> None:
    """Only the file written by Ignition is removed."""
    node.run_checked(END)

    assert receipt_of(node)["clean"] is True
    assert names_of(receipt_of(node)["found"]) == [node.plan.paths.egress_config]


def test_an_incomplete_installation_is_removed(node: Node) -> None:
    """After a bootstrap that failed before the API server started."""
    (node.root / "cluster/down").touch()
    node.run_checked("bootbridge_setup")

    node.run_checked(END)

    written = receipt_of(node)
    assert written["clean"] is True
    assert "API server unreachable" in written["warnings"][0]
    assert not node.path(node.plan.paths.tls).exists()


def test_a_manual_cleanup_works_without_the_installers_libraries(node: Node) -> None:
    """After an abandoned bootstrap."""
    node.run_checked(INSTALL)

    done = node.run(f"{node.plan.paths.hook_script} cleanup")

    assert done.returncode == 0, done.stderr
    assert receipt_of(node)["clean"] is True


def test_install_after_cleanup_can_be_removed_again(node: Node) -> None:
    """The marker of the earlier cleanup is deleted."""
    node.run_checked(INSTALL)
    node.run_checked(CLEANUP)
    node.run_checked(INSTALL)
    assert not node.path(node.plan.paths.receipt).exists()

    node.run_checked(END)

    assert receipt_of(node)["clean"] is True
    assert node.plan.paths.server_pod in names_of(receipt_of(node)["removed"])


# --- failures


def test_an_unreachable_api_server(node: Node) -> None:
    """The files are removed. The receipt lists the namespace as remaining."""
    node.run_checked(INSTALL)
    (node.root / "cluster/down").touch()

    node.run_checked(END)

    written = receipt_of(node)
    assert written["clean"] is False
    assert [item["resource"] for item in written["remains"]] == ["namespace"]
    assert not node.path(node.plan.paths.tls).exists()
    assert node.path("/opt/openshift/.bootkube.done").exists()
    assert node.records()[-1] == "failure konnectivity-cleanup"


def test_a_hanging_api_server_holds_the_bootstrap_for_the_bound(node: Node) -> None:
    """Every request ends with its time limit."""
    node.run_checked(INSTALL)
    (node.root / "cluster/hangs").touch()

    node.run_checked(END)

    # The last requests verify, and write the Event.
    assert SECONDS["API"] <= node.now() <= SECONDS["API"] + SECONDS["OBJECTS_END"] + 2 * SECONDS["OC"]
    assert node.path("/opt/openshift/.bootkube.done").exists()


def test_a_namespace_with_finalizers_does_not_block_the_bootstrap(node: Node) -> None:
    """The receipt gives the reason. A later cleanup checks again."""
    node.run_checked(INSTALL)
    create_objects(node)
    (node.root / "cluster/finalises-for-ever").touch()

    node.run_checked(f"BOOTBRIDGE_OBJECTS_END_SECONDS=1\n{END}")

    first = receipt_of(node)
    assert first["clean"] is False
    assert first["remains"] == [
        {
            "resource": "namespace",
            "name": f"Namespace {node.plan.namespace}",
            "reason": "waiting for finalizers",
        }
    ]
    assert node.records()[-1] == "success konnectivity-cleanup"
    (node.root / "cluster/finalises-for-ever").unlink()
    node.run_checked(END)
    second = receipt_of(node)
    assert second["clean"] is True
    assert set(names_of(first["found"])) <= set(names_of(second["removed"]))


def test_cleanup_continues_after_a_failed_deletion(node: Node) -> None:
    """The receipt contains the warning."""
    node.run_checked(INSTALL)
    create_objects(node)
    (node.root / "cluster/forbids").touch()

    node.run_checked(f"BOOTBRIDGE_OBJECTS_END_SECONDS=1\n{END}")

    written = receipt_of(node)
    assert [item["resource"] for item in written["remains"]] == ["daemonset", "secret", "namespace"]
    reason = 'Error from server (Forbidden): admission webhook "guard.example" denied the request'
    assert {item["reason"] for item in written["remains"]} == {f"deletion failed: {reason}"}
    assert not node.path(node.plan.paths.server_pod).exists()
    assert node.records()[-1] == "failure konnectivity-cleanup"


def test_an_unwritable_service_record_does_not_block_the_bootstrap(node: Node) -> None:
    """For example on a full disk."""
    node.run_checked(INSTALL)
    (node.root / "cluster/records").unlink()
    (node.root / "cluster/records").mkdir()

    node.run_checked(END)

    assert receipt_of(node)["clean"] is True


def test_cleanup_waits_for_the_server(node: Node) -> None:
    """A running server would create its socket again."""
    node.run_checked(INSTALL)
    (node.root / "cluster/server-stays").write_text("20")

    node.run_checked(END)

    assert receipt_of(node)["clean"] is True
    assert not node.path(node.plan.paths.socket).exists()
    assert 20 <= node.now() <= 22


def test_a_server_that_does_not_end_remains(node: Node) -> None:
    """After a wait with a time limit."""
    node.run_checked(INSTALL)
    (node.root / "cluster/server-stays").write_text("1e9")

    node.run_checked(END)

    written = receipt_of(node)
    assert written["clean"] is False
    assert names_of(written["remains"]) == ["TCP port 8091"]
    assert node.now() == SECONDS["SERVER_END"]


def test_the_next_receipt_contains_what_an_interrupted_cleanup_removed(node: Node) -> None:
    node.run_checked(INSTALL)
    (node.root / "tools/oc").unlink()
    killed = "bootbridge_verify_objects() { kill -KILL $BASHPID; }"
    node.run(f". {node.plan.paths.hook_script}\n{killed}\nbootbridge_cleanup")
    assert not node.path(node.plan.paths.receipt).exists()
    assert not node.path(node.plan.paths.tls).exists()

    node.run_checked(END)

    assert node.plan.paths.tls in names_of(receipt_of(node)["removed"])


@pytest.mark.parametrize("bypassed", [False, True], ids=["with the tunnel", "without the tunnel"])
def test_a_power_failure_during_the_removal(node: Node, bypassed: bool) -> None:
    """The manifests are deleted, the objects are not: the next removal still retries."""
    node.run_checked(INSTALL)
    if bypassed:  # a later start has deleted the manifests, and kept the list of objects
        for manifest in node.path(node.plan.paths.cluster_manifests).iterdir():
            manifest.unlink()
        node.path(node.plan.paths.stage_marker("konnectivity-agent-manifest")).unlink()
    (node.root / "cluster/down").touch()
    killed = (
        "bootbridge_verify_objects() { kill -KILL $BASHPID; }\nbootbridge_publish_remains() { exit 137; }"
    )
    done = node.run(f". {node.plan.paths.hook_script}\n{killed}\nbootbridge_cleanup")
    assert done.returncode == 137
    assert not node.path(node.plan.paths.receipt).exists()
    assert not node.path(node.plan.paths.namespace_manifest).exists()
    assert objects(node)
    (node.root / "cluster/down").unlink()
    (node.root / "cluster/down-until").write_text(str(BOOT_SECONDS + node.now() + 60))
    node.reboot()

    node.run_checked(END)

    assert objects(node) == []
    assert receipt_of(node)["clean"] is True
