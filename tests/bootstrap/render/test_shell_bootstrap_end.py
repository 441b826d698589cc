"""Runs the shell at the end of a bootstrap under faults, on the node's own clock.

In each case the bootstrap completes within its bound, the receipt is true, and the server is not removed
while the kube-apiserver of the node answers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bootbridge.bootstrap.plan.plan import Plan, ProxyImage
from bootbridge.bootstrap.render.shell.script import (
    HOLD_SECONDS_MAX,
    LAST_ATTEMPT_SECONDS_MAX,
    OBJECTS_MAX,
    RETRY_STOP_SECONDS,
    SECONDS,
)
from tests.bootstrap.render.node_programs import FOR_EVER, kube_apiserver
from tests.bootstrap.render.shell_node import BOOT_SECONDS, Network, Node, needs_node
from tests.support.not_run import needs_program

INSTALL = "bootbridge_setup\nbootbridge_manifests\nwait"
END = "bootbridge_cleanup\ntouch /opt/openshift/.bootkube.done"
RETRY_UNIT = "bootbridge-cleanup-retry.service"
OURS = ProxyImage("bootbridge", "registry.example/bootbridge:1")
# As systemd does (KillMode=control-group, the default): to all processes of the unit. The first is its shell.
STOP_UNIT = "kill -TERM -1; kill -TERM 1\n"
STILL_RUNS = "the kube-apiserver of this node still runs"
pytestmark = needs_node


@pytest.fixture
def network(network: Network) -> Network:
    network.interface("nic0", "10.0.0.5/24")
    return network


@pytest.fixture
def node(tmp_path: Path, network: Network) -> Node:
    """With the tunnel installed and its objects in the cluster."""
    node = Node(tmp_path / "node", network, Plan(key_kind="ecdsa-p256"))
    node.run_checked(INSTALL)
    assert objects(node) == {"daemonset", "secret", "namespace"}
    return node


def fault(node: Node, name: str, text: str = "") -> None:
    (node.root / "cluster" / name).write_text(text)


def objects(node: Node) -> set[str]:
    kinds = ("daemonset", "secret", "namespace")
    return {kind for kind in kinds if list((node.root / "cluster" / kind).glob("*"))}


def receipt_of(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.path(node.plan.paths.receipt).read_text())
    return found


def assert_receipt_is_true(node: Node) -> dict[str, Any]:
    """Compares the receipt with the cluster and the node's files."""
    receipt = receipt_of(node)
    remaining = {item["name"] for item in receipt["remains"]}
    unknown = any(item["reason"].startswith("unknown") for item in receipt["remains"])
    kinds = {item["resource"] for item in receipt["remains"] if not item["name"].startswith("/")}
    assert objects(node) <= kinds or (unknown and "namespace" in kinds)
    if not unknown:
        assert kinds - {"static-pod"} == objects(node)
    paths = node.plan.paths
    for path in (
        paths.server_pod,
        paths.tls,
        paths.egress_config,
        paths.secret_manifest,
        paths.agent_objects,
    ):
        assert node.path(path).exists() == (path in remaining), path
    assert receipt["clean"] is (not remaining)
    return receipt


def server_removals(node: Node) -> list[tuple[int, str]]:
    return [(at, what) for at, what in node.timeline() if what.startswith("server-removed")]


def deletions(node: Node) -> list[int]:
    return [at for at, what in node.timeline() if " delete " in what]


def assert_bootstrap_completed(node: Node) -> None:
    assert node.path("/opt/openshift/.bootkube.done").exists()
    assert node.now() <= HOLD_SECONDS_MAX


# --- the kube-apiserver's end


@pytest.mark.parametrize(("ends_after", "drain"), [(75, 0), (71, 8), (15, 0)])
def test_server_and_agents_stay_until_the_kube_apiserver_has_ended(
    node: Node, ends_after: int, drain: int
) -> None:
    """It serves on after its port is closed, too. The wait is in the log and a stage of its own."""
    with kube_apiserver(node, ends_after, drain):
        logged = node.run_checked(END)

    ended = ends_after + drain
    assert (ended, "apiserver-ended") in node.timeline()
    assert server_removals(node) == [(ended, "server-removed apiserver=gone")]
    assert min(deletions(node)) == ended
    assert f"kube-apiserver of this node: ended after {ended}s" in logged
    assert node.records()[-4:] == [
        *("start konnectivity-apiserver-end", "success konnectivity-apiserver-end"),
        *("start konnectivity-cleanup", "success konnectivity-cleanup"),
    ]
    assert assert_receipt_is_true(node)["clean"] is True
    assert node.started_units() == []


def test_a_kube_apiserver_with_other_arguments_is_found_by_its_port(node: Node) -> None:
    """A later release may start it in another way."""
    with kube_apiserver(node, 30, known_arguments=False):
        node.run_checked(END)

    assert server_removals(node) == [(30, "server-removed apiserver=gone")]


def test_a_kube_apiserver_that_does_not_end_holds_the_bootstrap_for_the_bound(node: Node) -> None:
    """Nothing is removed; the unit continues when it has ended."""
    with kube_apiserver(node, FOR_EVER):
        logged = node.run_checked(END)
        assert node.now() == SECONDS["APISERVER_END"]
        assert f"still running, bound reached after {SECONDS['APISERVER_END']}s" in logged
        assert node.records()[-4:] == [
            *("start konnectivity-apiserver-end", "failure konnectivity-apiserver-end"),
            *("start konnectivity-cleanup", "failure konnectivity-cleanup"),
        ]
        assert server_removals(node) == deletions(node) == []
        first = assert_receipt_is_true(node)
        assert {item["reason"] for item in first["remains"]} == {STILL_RUNS}
        assert_bootstrap_completed(node)
        assert node.started_units() == [RETRY_UNIT]

    assert node.run_unit(node.plan.paths.cleanup_retry_unit).returncode == 0
    assert assert_receipt_is_true(node)["clean"] is True
    assert objects(node) == set()


def test_the_unit_waits_for_the_kube_apiserver(node: Node) -> None:
    """Which ends ten minutes late."""
    with kube_apiserver(node, 780):
        node.run_checked(END)
        assert node.run_unit(node.plan.paths.cleanup_retry_unit).returncode == 0

    assert [what for _, what in server_removals(node)] == ["server-removed apiserver=gone"]
    assert 780 <= server_removals(node)[0][0] <= 780 + SECONDS["RETRY_PAUSE"]
    assert min(deletions(node)) >= 780
    assert assert_receipt_is_true(node)["clean"] is True
    assert not list(node.path("/etc/systemd/system/multi-user.target.wants").glob("*"))


def test_the_unit_ends_by_itself(node: Node) -> None:
    """It leaves the server, and an Event in the cluster."""
    with kube_apiserver(node, FOR_EVER):
        node.run_checked(END)
        earlier = len(events(node))
        done = node.run_unit(node.plan.paths.cleanup_retry_unit)
        assert done.returncode == 1
        assert node.now() <= SECONDS["APISERVER_END"] + SECONDS["RETRY"] + SECONDS["RETRY_PAUSE"]
        assert server_removals(node) == []
        assert_receipt_is_true(node)

    assert not list(node.path("/etc/systemd/system/multi-user.target.wants").glob("*"))
    assert [event["reason"] for event in events(node)[earlier:]] == ["BootstrapTunnelRemains"]


def test_a_node_that_shuts_down_deletes_the_objects_first(node: Node) -> None:
    """No later attempt could. The server stays, and the unit stays enabled in case of a reboot."""
    with kube_apiserver(node, FOR_EVER):
        node.run_checked(END)
        # systemd sends SIGTERM to all processes of the unit: also to the `sleep` that its shell waits for.
        fault(node, f"at-{node.now() + SECONDS['RETRY_PAUSE'] + BOOT_SECONDS}", "kill -TERM $PPID\n")
        done = node.run_unit(node.plan.paths.cleanup_retry_unit)
        assert done.returncode == 1, done.stdout
        assert objects(node) == set()
        assert server_removals(node) == []
        assert_receipt_is_true(node)
    node.reboot()

    assert assert_receipt_is_true(node)["clean"] is True


@pytest.fixture
def stuck_node(tmp_path: Path, network: Network) -> Node:
    """With all objects of a plan, a server that does not end, and programs that only their limits end."""
    node = Node(tmp_path / "stuck", network, Plan(key_kind="ecdsa-p256", image=OURS))
    assert len(node.plan.agent_objects) == OBJECTS_MAX
    node.run_checked(INSTALL)
    fault(node, "stuck")
    fault(node, "server-stays", "1e9")
    return node


def test_the_last_attempt_at_shutdown_ends_within_the_units_limit(stuck_node: Node) -> None:
    """The attempt in progress is ended; systemd kills the unit only at the limit."""
    node = stuck_node
    node.run_checked(END)
    stopped_at = node.now() + SECONDS["API"] // 2 // SECONDS["OC"] * SECONDS["OC"]
    fault(node, f"at-{stopped_at + BOOT_SECONDS}", STOP_UNIT)

    done = node.run_unit(node.plan.paths.cleanup_retry_unit)

    assert done.returncode == 1, done.stdout
    seconds = node.now() - stopped_at
    lists_and_event = (OBJECTS_MAX + 1) * SECONDS["OC"]
    assert seconds >= SECONDS["API"] + SECONDS["SERVER_END"] + lists_and_event, "one whole attempt"
    assert seconds <= LAST_ATTEMPT_SECONDS_MAX < RETRY_STOP_SECONDS
    unit = node.path(node.plan.paths.cleanup_retry_unit).read_text()
    assert f"\nTimeoutStopSec={RETRY_STOP_SECONDS}\n" in unit
    assert assert_receipt_is_true(node)["clean"] is False


def test_a_shutdown_between_two_attempts_starts_only_the_last_one(stuck_node: Node) -> None:
    """A signal while the unit looks for the kube-apiserver's process does not cost an attempt."""
    node = stuck_node
    signal = "bootbridge_apiserver_runs() { kill -TERM $$; return 1; }"

    done = node.run(f". {node.plan.paths.hook_script}\n{signal}\nbootbridge_cleanup_retry")

    assert done.returncode == 1, done.stdout
    assert node.now() <= LAST_ATTEMPT_SECONDS_MAX


def test_an_abandoned_bootstrap_is_removed_at_once(node: Node) -> None:
    """An operator asks for it, and the kube-apiserver may run for ever then."""
    with kube_apiserver(node, FOR_EVER):
        done = node.run_unit(node.plan.paths.cleanup_unit)
    assert done.returncode == 0, done.stderr
    assert node.now() == 0
    assert assert_receipt_is_true(node)["clean"] is True


# --- the API's unstable moments


def test_an_api_that_is_absent_for_90_seconds(node: Node) -> None:
    fault(node, "down-until", str(BOOT_SECONDS + 90))

    node.run_checked(END)

    assert assert_receipt_is_true(node)["clean"] is True
    assert objects(node) == set()
    assert 90 <= node.now() <= SECONDS["API"]
    assert node.records()[-1] == "success konnectivity-cleanup"


def test_an_oc_that_fails_every_second_call(node: Node) -> None:
    fault(node, "flaky")

    node.run_checked(END)

    assert assert_receipt_is_true(node)["clean"] is True
    assert objects(node) == set()


def test_an_api_that_returns_after_the_bootstrap(node: Node) -> None:
    """The unit removes what is left, also if the node is rebooted before."""
    fault(node, "down-until", str(BOOT_SECONDS + 600))
    node.run_checked(END)
    assert_bootstrap_completed(node)
    first = assert_receipt_is_true(node)
    assert [item["name"] for item in first["remains"]] == [f"Namespace {node.plan.namespace}"]
    assert first["remains"][0]["reason"].startswith("unknown: API server unreachable: The connection")
    assert not node.path(node.plan.paths.server_pod).exists()
    assert node.records()[-1] == "failure konnectivity-cleanup"
    assert node.started_units() == [RETRY_UNIT]

    node.reboot()

    last = assert_receipt_is_true(node)
    assert last["clean"] is True, (node.now(), last)
    assert node.plan.paths.server_pod in {item["name"] for item in last["removed"]}
    assert objects(node) == set()


def events(node: Node) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((node.root / "cluster/event").glob("*"))]


def test_refused_deletions_are_reported_in_the_cluster(node: Node) -> None:
    """As an Event about the namespace, because the receipt is lost with the node."""
    fault(node, "forbids")
    logged = node.run_checked(END)
    assert_bootstrap_completed(node)
    receipt = assert_receipt_is_true(node)
    assert len(receipt["remains"]) == 3
    (event,) = events(node)
    assert (event["type"], event["metadata"]["namespace"]) == ("Warning", "default")
    assert event["involvedObject"]["name"] == node.plan.namespace
    for item in receipt["remains"]:
        assert f"{item['name']}: {item['reason']}" in event["message"]
        assert f"remains: {item['name']}: {item['reason']}" in logged


def test_a_node_without_systemctl_still_completes(node: Node) -> None:
    fault(node, "forbids")
    fault(node, "systemctl-fails")
    logged = node.run_checked(END)
    assert f"cannot start {RETRY_UNIT}" in logged
    assert_bootstrap_completed(node)


@pytest.mark.parametrize("image", [ProxyImage(), OURS], ids=["three objects", "five objects"])
def test_all_faults_together_hold_the_bootstrap_for_the_bound(
    tmp_path: Path, network: Network, image: ProxyImage
) -> None:
    """A slow kube-apiserver, a server that does not end, and programs that only their limits end."""
    node = Node(tmp_path / "node", network, Plan(key_kind="ecdsa-p256", image=image))
    node.run_checked(INSTALL)
    fault(node, "stuck")
    ends = SECONDS["APISERVER_END"] - 1
    fault(node, "server-stays", "1e9")
    with kube_apiserver(node, ends):
        node.run_checked(END)
    assert_bootstrap_completed(node)
    requests = (len(node.plan.agent_objects) + 2) * SECONDS["OC"]
    assert node.now() >= ends + SECONDS["API"] + SECONDS["SERVER_END"] + requests
    assert receipt_of(node)["clean"] is False
    assert server_removals(node)[0][1] == "server-removed apiserver=gone"


# --- the units


@needs_program("systemd-analyze", "systemd")
def test_systemd_accepts_the_units(node: Node, tmp_path: Path) -> None:
    """With a program that exists on this machine."""
    paths = node.plan.paths
    for path in (paths.cleanup_unit, paths.cleanup_retry_unit):
        copy = tmp_path / Path(path).name
        text = node.path(path).read_text().replace(paths.hook_script, shutil.which("true") or "")
        copy.write_text(text.replace("/opt/openshift", "/"))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
        )
        assert copy.name not in done.stderr, done.stderr
