"""`bootbridge up` on a kubeadm node: real server and agents, run by a kubelet stand-in from what was laid."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.bootstrap_node import BootstrapNode, bootstrap_node

RESOURCES = (
    "record",
    "egress-config",
    "certificates",
    "socket",
    "static-pod",
    "apiserver",
    "namespace",
    "secret",
    "daemonset",
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BootstrapNode]:
    with bootstrap_node(tmp_path) as node:
        yield node


def changes(node: BootstrapNode) -> dict[str, str]:
    return {entry["resource"]: entry["change"] for entry in json.loads(node.stdout)["resources"]}


def test_up_lays_everything_in_order_and_waits_until_all_agents_are_connected(node: BootstrapNode) -> None:
    """When it ends, the server has its agents and nothing has to be waited for any more."""
    node.up("--json")
    assert tuple(changes(node)) == RESOURCES
    assert node.run("status", "--json") == 0, node.output
    seen = json.loads(node.stdout)
    assert seen["works"]
    assert seen["server"] == {"healthy": True, "ready": True, "agents": ["node0", "node1"]}
    assert {entry["resource"]: entry["state"] for entry in seen["resources"]} == dict.fromkeys(
        RESOURCES, "present"
    )


def test_a_second_run_changes_nothing(node: BootstrapNode) -> None:
    """Same files, same objects, same processes."""
    node.up()
    before, started = node.scan(), list(node.kubelet.history)
    node.up("--json")
    assert changes(node) == dict.fromkeys(RESOURCES, "unchanged")
    assert node.scan() == before
    assert node.kubelet.history == started


def test_a_changed_address_renews_certificates_and_everything_that_carries_them(node: BootstrapNode) -> None:
    """The agents come back with the new ones; what does not carry them is left alone."""
    node.up()
    old = node.path(node.plan.paths.server_cert).read_bytes()
    node.up("--json", env={"BOOTBRIDGE_ADDRESS": "127.0.0.2"})
    assert [part for part, change in changes(node).items() if change == "changed"] == [
        "certificates",
        "static-pod",
        "secret",
        "daemonset",
    ]
    assert node.path(node.plan.paths.server_cert).read_bytes() != old
    assert node.run("status", env={"BOOTBRIDGE_ADDRESS": "127.0.0.2"}) == 0, node.output


def test_a_dry_run_says_what_would_be_done_and_touches_nothing(node: BootstrapNode) -> None:
    """Neither on the node nor in the cluster."""
    before = node.scan()
    node.up("--dry-run", "--json")
    assert changes(node) == {**dict.fromkeys(RESOURCES, "created"), "apiserver": "changed"}
    assert node.scan() == before
    assert not [method for method, _ in node.api.requests if method != "GET"]


def test_keys_are_nowhere_but_in_their_files_and_the_secret(node: BootstrapNode) -> None:
    """Nothing that was printed or logged, no other file and no other object carries a key."""
    node.up("--json")
    said = node.output
    paths = node.plan.paths
    keys = [node.path(path).read_text() for path in (paths.server_key, paths.agent_key)]
    # A line from the middle of a key, as it would look in any file, log or dump.
    marks = [line for key in keys for line in key.splitlines()[1:-1]]
    holders = {
        path for path in _texts(node.root) if any(mark in path.read_text(errors="replace") for mark in marks)
    }
    assert holders == {node.path(paths.server_key), node.path(paths.agent_key)}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in holders)
    assert stat.S_IMODE(node.path(paths.tls).stat().st_mode) == 0o700
    assert not any(mark in text for mark in marks for text in (said, node.kubelet.log.read_text()))
    encoded = node.api.held("secrets", node.plan.namespace, node.plan.secret_name)
    assert encoded is not None
    key = encoded["data"]["tls.key"]
    others = [found for place, found in node.api.objects.items() if place[0] != "secrets"]
    assert key not in json.dumps(others)
    assert key not in said
    node.down()
    assert not any(mark in node.output or key in node.output for mark in marks)
    assert not any(mark in path.read_text(errors="replace") for path in _texts(node.root) for mark in marks)


def test_a_namespace_of_somebody_else_is_not_taken_over(node: BootstrapNode) -> None:
    """It is refused by name, and `down` leaves it where it is."""
    name = node.plan.namespace
    node.api.call("PATCH", f"/api/v1/namespaces/{name}", {"metadata": {"name": name}})
    assert node.run("up") == 1
    assert f"Namespace {name}: is there already, and not ours" in node.output
    node.down()
    assert f"namespaces//{name}" in node.api.names()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ((403, "Forbidden", "secrets is forbidden"), ("agent Secret", "403 Forbidden", "--kubeconfig")),
        (
            (409, "Conflict", 'conflict with "kubectl-edit"'),
            ("agent Secret", "kubectl-edit", "bootbridge down"),
        ),
    ],
)
def test_a_refusal_names_the_object_and_the_way_on(
    node: BootstrapNode, fault: tuple[int, str, str], words: tuple[str, ...]
) -> None:
    """What worked before stays; once the cause is gone, the next run goes on from there."""
    node.api.faults.append(lambda method, path: fault if method == "PATCH" and "/secrets/" in path else None)
    assert node.run("up") == 1
    assert [word for word in words if word not in node.output] == []
    assert "bootbridge up` again" in node.output
    assert node.path(node.plan.paths.server_pod).exists()
    node.api.faults.clear()
    node.up("--json")
    assert changes(node)["certificates"] == "unchanged"
    assert changes(node)["secret"] == "created"


def test_agents_that_never_come_end_the_wait_with_the_reason(node: BootstrapNode) -> None:
    """A server without an agent is not ready, and `up` says so instead of waiting for ever."""
    node.api.nodes = ()
    assert node.run("up", "--timeout", "8s") == 1
    assert "the server has no agent" in node.output
    node.up("--no-wait")


def test_before_kubeadm_init_the_node_is_prepared_and_the_next_step_said(tmp_path: Path) -> None:
    """Then the cluster comes up with the setting in it, and the second run does the rest."""
    with bootstrap_node(tmp_path, initialised=False) as node:
        before = node.scan()
        node.up()
        patch = f"{node.plan.paths.state}/kubeadm-cluster-configuration.yaml"
        assert f"merge {patch}" in node.output
        assert "Next: there is no cluster yet" in node.output
        configuration = yaml.safe_load(node.path(patch).read_text())
        flags = {entry["name"] for entry in configuration["apiServer"]["extraArgs"]}
        assert "egress-selector-config-file" in flags
        node.down()
        assert node.scan() == before
        node.up()
        node.kubeadm_init()
        node.up()
        assert node.run("status") == 0, node.output


def test_two_at_once_are_refused(node: BootstrapNode) -> None:
    """The second one says so and touches nothing."""
    import fcntl

    folder = os.open(node.path("/etc/kubernetes"), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        assert node.run("up") == 1
        assert "another bootbridge is at work" in node.output
    finally:
        os.close(folder)


def test_ctrl_c_leaves_what_can_be_continued(node: BootstrapNode) -> None:
    """Exit code 130, a line on how to go on, and the next run finishes the work."""
    assert node.run("up", env={"BOOTBRIDGE_INTERRUPT_AT": "9"}) == 130
    assert "`bootbridge up` goes on from here" in node.output
    assert "Traceback" not in node.output
    node.up()
    assert node.run("status") == 0, node.output


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--flavour=openshift", "--image=payload"), "bootbridge inject"),
        (("--timeout=soon",), "--timeout: 'soon' is no duration"),
        (("--plan=/no/such/plan.json",), "--plan: cannot read /no/such/plan.json"),
        (("--root=/no/such/root",), "--root: /no/such/root is no directory"),
        (("--kubeconfig=/no/such/config",), "/no/such/config"),
        (("--firewall",), "--firewall: not supported on platform none"),
        (("--firewall", "--platform=gcp", "--infra-id=x-1"), "'gcloud' is not on the PATH"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line_that_names_the_flag(
    node: BootstrapNode, flags: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, no traceback, and what was laid before the refusal goes with `down`."""
    monkeypatch.setenv("PATH", "/nonexistent")
    before = node.scan()
    assert node.run("up", *flags) == 1
    assert words in node.output
    assert "Traceback" not in node.output
    node.down()
    assert node.scan() == before


def _texts(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_another_protocol_for_a_laid_tunnel_is_refused(node: BootstrapNode) -> None:
    """The kube-apiserver that runs would go on speaking the old one."""
    node.up()
    assert node.run("up", "--protocol=HTTPConnect") == 1
    assert "--protocol: the tunnel is laid with GRPC" in node.output
    assert "bootbridge down" in node.output
