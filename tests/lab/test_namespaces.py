"""The namespaces of lab nodes: isolated, connected by the switch, and removed completely."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bootbridge.errors import OperatorError
from bootbridge.lab import init, network, processes
from bootbridge.lab.cgroups import Cgroups
from bootbridge.lab.layout import Layout
from bootbridge.lab.namespaces import NodeNamespaces
from bootbridge.lab.processes import processes_using, start_time
from tests.support.lab_mount_holder import looking_in
from tests.support.not_run import require_program


@pytest.fixture
def switch(namespaces: NodeNamespaces) -> NodeNamespaces:
    """Namespaces for the switch; nodes need iptables to masquerade their pods."""
    require_program("iptables")
    return namespaces


def test_node_has_its_own_name_processes_and_network(namespaces: NodeNamespaces) -> None:
    assert namespaces.run_checked("hostname") == b"machine\n"
    assert namespaces.run_checked("readlink", "/proc/1/exe").strip().split(b"/")[-1].startswith(b"python")
    assert b"eth" not in namespaces.run_checked("ip", "-o", "link")


def test_writes_stay_on_the_node(namespaces: NodeNamespaces, tmp_path: Path) -> None:
    for folder in ("/etc", "/opt", "/var/lib", "/usr/local/bin", "/run"):
        namespaces.run_checked("sh", "-c", f"echo mine > {folder}/bootbridge-lab-test")
        assert not Path(folder, "bootbridge-lab-test").exists()
    assert (tmp_path / "machine/etc/upper/bootbridge-lab-test").read_text() == "mine\n"


def test_node_runs_this_machine_s_programs(namespaces: NodeNamespaces) -> None:
    assert namespaces.run(["sh", "-c", "exit 7"]).returncode == 7


@pytest.mark.parametrize("network_only", [False, True])
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "http_proxy"])
def test_proxy_variables_are_unset_on_a_node(
    namespaces: NodeNamespaces, monkeypatch: pytest.MonkeyPatch, name: str, network_only: bool
) -> None:
    """A proxy of this machine is unreachable there; other variables are kept."""
    monkeypatch.setenv(name, "http://proxy.example:3128")
    monkeypatch.setenv("EDITOR", "ed")
    seen = namespaces.run_checked("env", network_only=network_only)
    assert b"proxy.example" not in seen
    assert b"EDITOR=ed\n" in seen


def test_timeout_of_a_command_is_an_error(namespaces: NodeNamespaces) -> None:
    with pytest.raises(OperatorError, match=r"machine: sleep 600: timed out after 0.1s"):
        namespaces.run_checked("sleep", "600", timeout=0.1)


def test_all_processes_end_with_the_node(namespaces: NodeNamespaces, tmp_path: Path) -> None:
    pid = namespaces.spawn(["sleep", "1000"], tmp_path / "log", {"PATH": os.environ["PATH"]})
    assert start_time(pid)
    namespaces.end()
    assert not start_time(pid)
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in line]


def test_end_waits_for_outside_processes_that_hold_mounts(
    namespaces: NodeNamespaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `nsenter` does until its child has ended."""
    with looking_in(namespaces, tmp_path / "machine") as outside:
        monkeypatch.setattr("time.sleep", lambda _: outside.kill())
        namespaces.end()
        assert not start_time(outside.pid)


def test_process_that_does_not_end_is_named(
    namespaces: NodeNamespaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bootbridge.lab.namespaces.STOP_SECONDS", 0.1)
    home = tmp_path / "machine"
    with (
        looking_in(namespaces, home),
        pytest.raises(OperatorError, match=r"node machine: processes still .*sleep 1000"),
    ):
        namespaces.end()


@pytest.mark.parametrize("folder", ["with space", "with\\backslash", "with\nline"])
def test_processes_are_found_by_directories_with_special_characters(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /proc, the kernel escapes a space, because it ends a field."""
    written = f"/labs/{folder}".replace("\\", "\\134").replace(" ", "\\040").replace("\n", "\\012")
    mounts = f"1 2 0:3 / /etc rw - overlay overlay rw,upperdir={written}/node1/etc/upper,workdir=/w"
    shown = {"mountinfo": mounts, "stat": Path("/proc/self/stat").read_text()}
    monkeypatch.setattr(processes, "all_processes", lambda: [7])
    monkeypatch.setattr(processes, "read_proc", lambda _, what: shown[what])
    assert (
        list(processes_using(Path("/labs", folder)))
        == list(processes_using(Path("/labs", folder, "node1")))
        == [7]
    )
    assert processes_using(Path("/labs", folder, "node")) == processes_using(Path("/lab")) == {}


def test_reused_process_id_is_not_the_node(namespaces: NodeNamespaces) -> None:
    assert namespaces.alive
    assert not NodeNamespaces(namespaces.name, namespaces.pid, namespaces.started + 1).alive


def test_namespaces_are_stored_and_loaded(namespaces: NodeNamespaces) -> None:
    assert NodeNamespaces.load(namespaces.dump()) == namespaces


def test_node_is_found_without_a_record(namespaces: NodeNamespaces, tmp_path: Path) -> None:
    """Its creator may have been killed before it wrote one."""
    found = NodeNamespaces.find_below(tmp_path)
    assert namespaces in found
    assert {each.name for each in found} == {"machine"}
    assert NodeNamespaces.find_below(tmp_path / "machine") == []


def test_control_groups_of_a_node_are_below_the_lab_s(namespaces: NodeNamespaces, tmp_path: Path) -> None:
    groups = Cgroups(tmp_path / "lab")
    node = NodeNamespaces.create("node", tmp_path / "node", groups.make("node"))
    try:
        hierarchies = init.hierarchies()
        assert hierarchies
        for hierarchy in hierarchies:
            node.run_checked("mkdir", f"{hierarchy}/inside")
            assert not (hierarchy / "inside").exists()
            assert (hierarchy / groups.name / "node" / "inside").is_dir()
        assert groups.name.encode() not in node.run_checked("cat", "/proc/1/cgroup")
    finally:
        node.end()
        assert groups.remove() == []
    assert not any((hierarchy / groups.name).exists() for hierarchy in hierarchies)


def test_failed_creation_is_reported_in_one_line(namespaces: NodeNamespaces, tmp_path: Path) -> None:
    """With the error of mount, and without lines of an earlier start."""
    home = tmp_path / "broken"
    for name in ("etc", "etc/upper"):
        (home / name).mkdir(parents=True, exist_ok=True)
    (home / "init.log").write_text("an earlier line\n")
    (home / "etc" / "work").touch()
    with pytest.raises(OperatorError) as refused:
        NodeNamespaces.create("broken", home)
    assert str(refused.value) == f"node broken: cannot create namespaces: {home}/etc/work: File exists"
    (home / "etc" / "work").unlink()
    (home / "etc" / "upper").rmdir()
    (home / "etc" / "upper").symlink_to("/proc")
    with pytest.raises(
        OperatorError, match=r"namespaces: mount -t overlay .* /etc: mount: /etc: \w.*"
    ) as refused:
        NodeNamespaces.create("broken", home)
    assert "Traceback" not in str(refused.value)
    assert " / " not in str(refused.value)


@pytest.mark.parametrize(
    "directory", ["/var/lib/somewhere", "/run/somewhere", "/nowhere/a,b", "/nowhere/a\\b"]
)
def test_invalid_node_directory_is_rejected(directory: str) -> None:
    with pytest.raises(OperatorError, match="--dir"):
        NodeNamespaces.create("machine", Path(directory))
    assert not Path(directory).exists()


def test_nodes_reach_each_other_until_a_link_is_cut(switch: NodeNamespaces, tmp_path: Path) -> None:
    layout = Layout(1, "dual")
    all_namespaces = {
        node.name: NodeNamespaces.create(node.name, tmp_path / node.name) for node in layout.all_nodes
    }
    try:
        network.build_switch(switch)
        for node in layout.all_nodes:
            network.connect_node(switch, all_namespaces[node.name], node, layout)
        for node in layout.cluster_nodes:
            network.add_pod_routes(all_namespaces[node.name], node, layout)
        (node,) = layout.cluster_nodes
        for address in node.addresses:
            await_neighbour(all_namespaces["bootstrap"], str(address))
        network.disconnect(switch, node.name)
        assert not neighbour_answers(all_namespaces["bootstrap"], str(node.address))
        network.reconnect(switch, node.name)
        await_neighbour(all_namespaces["bootstrap"], str(node.address))
    finally:
        for made in all_namespaces.values():
            made.end()


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_switch_forwards_a_port_of_the_old_address(
    switch: NodeNamespaces, tmp_path: Path, family: str
) -> None:
    """From any node, the moved one included; other ports of the old address are closed."""
    layout = Layout(1, family)
    all_namespaces = {
        node.name: NodeNamespaces.create(node.name, tmp_path / node.name) for node in layout.all_nodes
    }
    (subnet,) = layout.networks.machine
    old, new = layout.bootstrap.address, layout.moved_bootstrap.address
    try:
        network.build_switch(switch)
        for node in layout.all_nodes:
            network.connect_node(switch, all_namespaces[node.name], node, layout)
        serve = ["python3", "-m", "http.server", "--bind", "::", "6443"]
        all_namespaces["bootstrap"].spawn(serve, tmp_path / "web.log", {"PATH": os.environ["PATH"]})
        await_web(all_namespaces["node1"], str(old), tmp_path / "web.log")
        network.change_address(all_namespaces["bootstrap"], old, new, subnet.prefixlen)
        network.forward_port(switch, all_namespaces["bootstrap"], (old, subnet), new, 6443)
        for made in all_namespaces.values():
            network.flush_neighbours(made)
            await_web(made, str(old), tmp_path / "web.log")
        assert connect(all_namespaces["node1"], str(old), 8091) != "connected"
    finally:
        for made in all_namespaces.values():
            made.end()


def await_web(namespaces: NodeNamespaces, address: str, log: Path) -> None:
    deadline = time.monotonic() + 20
    while (result := connect(namespaces, address, 6443)) != "connected":
        assert time.monotonic() < deadline, f"{result}: {log.read_text()}"
        time.sleep(0.05)


def connect(namespaces: NodeNamespaces, address: str, port: int) -> str:
    program = f"""
import socket
try:
    socket.create_connection(({address!r}, {port}), 2)
    print("connected")
except OSError as error:
    print(repr(error))
"""
    return namespaces.run_checked("python3", "-I", "-c", program).decode().strip()


def await_neighbour(namespaces: NodeNamespaces, address: str) -> None:
    """Waits until the link is up."""
    deadline = time.monotonic() + 20
    while not neighbour_answers(namespaces, address):
        assert time.monotonic() < deadline, f"{address} does not answer"


def neighbour_answers(namespaces: NodeNamespaces, address: str) -> bool:
    """Returns whether the machine is reachable: it refuses the connection."""
    family = "AF_INET6" if ":" in address else "AF_INET"
    program = f"""
import socket
probe = socket.socket(socket.{family})
probe.settimeout(1)
try:
    probe.connect(({address!r}, 9))
except ConnectionRefusedError:
    print("answer")
except OSError:
    pass
"""
    return b"answer" in namespaces.run_checked("python3", "-I", "-c", program)
