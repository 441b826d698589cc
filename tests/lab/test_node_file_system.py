"""The file system of a lab node: this machine's programs, without its cluster configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bootbridge.common.files import Asset
from bootbridge.lab import init, instances, node_runtime
from bootbridge.lab.components import Components
from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import Layout
from bootbridge.lab.path_in_root import resolve_in_root
from tests.support.not_run import not_run, require_program

NODE = "bootstrap"
FOREIGN = "foreign"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab whose machines are not created yet."""
    if os.geteuid() != 0:
        not_run("namespaces and mounts need root")
    require_program("iptables")
    lab = Lab(tmp_path / "lab", Layout(1))
    lab.create_directory()
    yield lab
    assert lab.down() == []


def on_this_machine(lab: Lab, path: str) -> Path:
    """Returns where to write a file that the node sees at `path` as this machine's."""
    covered = next(top for top in init.OVERLAID if Path(path).is_relative_to(top))
    upper = lab.directory / "nodes" / NODE / init.directory_name(covered) / "upper"
    place = upper / Path(path).relative_to(covered)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def test_node_has_resolv_conf_if_this_machine_s_is_a_link_into_run(lab: Lab) -> None:
    """As with systemd-resolved; a kubelet starts no pod without that file."""
    on_this_machine(lab, "/etc/resolv.conf").symlink_to("/run/bootbridge-lab-test/resolv.conf")
    lab.create_machines()
    assert lab.namespaces(NODE).run_checked("cat", "/etc/resolv.conf") == b"nameserver 127.0.0.1\n"
    assert not Path("/run/bootbridge-lab-test").exists()


def test_cluster_files_of_this_machine_are_hidden(lab: Lab) -> None:
    folders = [path for path in init.BOUND if path not in ("/var/log", "/var/lib/containerd")]
    assert {"/etc/kubernetes", "/etc/cni", "/var/lib/etcd"} < set(folders)
    for path in folders:
        on_this_machine(lab, f"{path}/{FOREIGN}").touch()
    lab.create_machines()
    assert lab.namespaces(NODE).run_checked("find", *folders, "-mindepth", "1") == b""


def test_node_files_survive_a_restart(lab: Lab) -> None:
    lab.create_machines()
    lab.write(NODE, {f"{path}/own": Asset(b"mine") for path in init.BOUND})
    lab.namespaces(NODE).end()
    lab.create_machine(lab.layout.node(NODE))
    for path in init.BOUND:
        assert lab.file(NODE, f"{path}/own").read_bytes() == b"mine"
        assert not Path(path, "own").exists()


def test_writes_follow_links_inside_the_node(lab: Lab) -> None:
    """From outside, the kernel would resolve an absolute link against this machine's root."""
    lab.create_machines()
    there = "/opt/bootbridge-lab-test"
    lab.namespaces(NODE).run_checked("ln", "-s", there, "/etc/folder")
    lab.namespaces(NODE).run_checked("ln", "-s", f"{there}/not-this", "/etc/file")
    lab.write(NODE, {"/etc/folder/below/one": Asset(b"1"), "/etc/file": Asset(b"2")})
    assert lab.namespaces(NODE).run_checked("cat", f"{there}/below/one", "/etc/file") == b"12"
    assert not Path(there).exists()


def test_lab_programs_replace_this_machine_s_in_usr_local(lab: Lab, tmp_path: Path) -> None:
    theirs, ours = (tmp_path / name for name in ("theirs", "ours"))
    names = ("kubeadm", "kubelet", "kubectl", "systemctl")
    for folder in (theirs, ours):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(folder.name)
    for name in names:
        on_this_machine(lab, f"/usr/local/bin/{name}").symlink_to(theirs / name)
    lab.create_machines()
    programs = Components({name: ours / name for name in names}, tmp_path)
    instances.install(lab, lab.layout.node(NODE), programs)
    seen = lab.namespaces(NODE).run_checked("cat", *(f"/usr/local/bin/{name}" for name in names)).decode()
    assert seen.startswith("ours" * 3 + "#!/bin/sh")
    assert {path.read_text() for path in theirs.iterdir()} == {"theirs"}


def test_bootbridge_runs_on_a_node_from_any_installation_path(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "with a space" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr("bootbridge.lab.lab.sys", SimpleNamespace(executable=str(python)))
    lab.create_machines()
    assert lab.namespaces(NODE).run_checked("bootbridge", "version") == b"-m bootbridge.cli.main version\n"


def test_kubelet_paths_are_the_node_s_own() -> None:
    own = (*init.OVERLAID, *init.BOUND, init.RUN)
    settings = node_runtime.KUBELET_SETTINGS
    for path in (settings["volumePluginDir"], settings["resolvConf"]):
        assert any(Path(path).is_relative_to(top) for top in own)


@pytest.mark.parametrize(
    ("link", "path", "place"),
    [
        ("/real", "/link/file", "real/file"),
        ("real", "/link/file", "real/file"),
        ("../../real", "/link/file", "real/file"),
        ("/link-2", "/link/file", "real/file"),
        ("/nowhere", "/link/file", "nowhere/file"),
        ("/real", "/link", "link"),
        ("/real", "/link/../file", "file"),
        ("/real", "/", ""),
    ],
)
def test_links_in_parents_are_resolved_in_the_root(tmp_path: Path, link: str, path: str, place: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link-2").symlink_to("real")
    (tmp_path / "link").symlink_to(link)
    assert resolve_in_root(tmp_path, path) == tmp_path / place


def test_link_loop_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/link")
    with pytest.raises(OSError, match="symbolic links"):
        resolve_in_root(tmp_path, "/link/file")
