"""`bootbridge up` on a kubeadm node: real server and agents, started by a fake kubelet."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bootbridge.kube.errors import KubeError
from tests.support.bootstrap_node import BootstrapNode, bootstrap_node
from tests.support.fake_api_objects import failing

RESOURCES = (
    "record",
    "egress-config",
    "certificates",
    "socket",
    "static-pod",
    "apiserver",
    "namespace",
    "secret",
    "role",
    "role-binding",
    "apiserver-address",
    "daemonset",
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BootstrapNode]:
    with bootstrap_node(tmp_path) as node:
        yield node


def changes(node: BootstrapNode) -> dict[str, str]:
    return {entry["resource"]: entry["change"] for entry in json.loads(node.stdout)["resources"]}


def test_up_installs_in_order_and_waits_until_all_agents_are_connected(node: BootstrapNode) -> None:
    """Right after `up`, `status` reports the tunnel as ready."""
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


def test_a_changed_address_renews_certificates_and_their_users(node: BootstrapNode) -> None:
    """The agents reconnect with the new certificates; other resources are unchanged."""
    node.up()
    old = node.path(node.plan.paths.server_cert).read_bytes()
    node.up("--json", env={"BOOTBRIDGE_ADDRESS": "127.0.0.2"})
    assert [name for name, change in changes(node).items() if change == "changed"] == [
        "certificates",
        "static-pod",
        "secret",
        "daemonset",
    ]
    assert node.path(node.plan.paths.server_cert).read_bytes() != old
    assert node.run("status", env={"BOOTBRIDGE_ADDRESS": "127.0.0.2"}) == 0, node.output


def test_a_dry_run_changes_nothing(node: BootstrapNode) -> None:
    """Neither on the node nor in the cluster."""
    before = node.scan()
    node.up("--dry-run", "--json")
    assert changes(node) == {**dict.fromkeys(RESOURCES, "created"), "apiserver": "changed"}
    assert node.scan() == before
    assert not [call for call in node.api.calls if call.method != "GET"]


def test_keys_exist_only_in_their_files_and_the_secret(node: BootstrapNode) -> None:
    """No output, log, other file or other object contains a key."""
    node.up("--json")
    output = node.output
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
    assert not any(mark in text for mark in marks for text in (output, node.kubelet.log.read_text()))
    encoded = node.api.held("secrets", node.plan.namespace, node.plan.secret_name)
    assert encoded is not None
    key = encoded["data"]["tls.key"]
    others = [found for place, found in node.api.objects.items() if place[0] != "secrets"]
    assert key not in json.dumps(others)
    assert key not in output
    node.down()
    assert not any(mark in node.output or key in node.output for mark in marks)
    assert not any(mark in path.read_text(errors="replace") for path in _texts(node.root) for mark in marks)


def test_a_foreign_namespace_of_the_same_name_is_rejected(node: BootstrapNode) -> None:
    """`down` does not remove it."""
    name = node.plan.namespace
    node.api.call("PATCH", f"/api/v1/namespaces/{name}", {"metadata": {"name": name}})
    assert node.run("up") == 1
    assert f"Namespace {name}: exists already and is not ours" in node.output
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
def test_an_api_error_names_the_resource_and_the_fix(
    node: BootstrapNode, fault: tuple[int, str, str], words: tuple[str, ...]
) -> None:
    """Nothing is rolled back; when the cause is fixed, the next run continues."""
    node.api.faults.append(failing("PATCH", "/secrets/", KubeError(*fault)))
    assert node.run("up") == 1
    assert [word for word in words if word not in node.output] == []
    assert "bootbridge up` again" in node.output
    assert node.path(node.plan.paths.server_pod).exists()
    node.api.faults.clear()
    node.up("--json")
    assert changes(node)["certificates"] == "unchanged"
    assert changes(node)["secret"] == "created"


def test_waiting_for_agents_times_out_with_the_reason(node: BootstrapNode) -> None:
    node.api.nodes = ()
    assert node.run("up", "--timeout", "8s") == 1
    assert "no agent is connected to the server" in node.output
    node.up("--no-wait")


def test_before_kubeadm_init_the_node_is_prepared_and_the_next_step_shown(tmp_path: Path) -> None:
    """The second run, after `kubeadm init`, installs the rest."""
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


def test_a_concurrent_run_is_rejected(node: BootstrapNode) -> None:
    import fcntl

    folder = os.open(node.path("/etc/kubernetes"), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        assert node.run("up") == 1
        assert "another bootbridge process is running on this node" in node.output
    finally:
        os.close(folder)


def test_an_interrupted_run_can_be_continued(node: BootstrapNode) -> None:
    assert node.run("up", env={"BOOTBRIDGE_INTERRUPT_AT": "9"}) == 130
    assert "continue with `bootbridge up`" in node.output
    assert "Traceback" not in node.output
    node.up()
    assert node.run("status") == 0, node.output


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--flavour=openshift", "--image=payload"), "bootbridge inject"),
        (("--timeout=soon",), "--timeout: invalid duration 'soon'"),
        (("--plan=/no/such/plan.json",), "--plan: cannot read /no/such/plan.json"),
        (("--root=/no/such/root",), "--root: directory not found: /no/such/root"),
        (("--kubeconfig=/no/such/config",), "/no/such/config"),
        (("--firewall",), "--firewall: not supported on platform none"),
        (("--firewall", "--platform=gcp", "--infra-id=x-1"), "command not found: 'gcloud'"),
    ],
)
def test_an_invalid_flag_is_a_one_line_error(
    node: BootstrapNode, flags: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`down` removes what was installed before the error."""
    monkeypatch.setenv("PATH", "/nonexistent")
    before = node.scan()
    assert node.run("up", *flags) == 1
    assert words in node.output
    assert "Traceback" not in node.output
    node.down()
    assert node.scan() == before


def _texts(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_the_protocol_of_an_installed_tunnel_cannot_be_changed(node: BootstrapNode) -> None:
    """The running kube-apiserver would continue to use the old one."""
    node.up()
    assert node.run("up", "--protocol=HTTPConnect") == 1
    assert "--protocol: cannot be changed: the tunnel is installed with GRPC" in node.output
    assert "bootbridge down" in node.output
