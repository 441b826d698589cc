"""Files below a root directory, processes and ports of a node."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from tests.support.process_program import free_port


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_node_paths_are_below_the_root(host: Host, tmp_path: Path) -> None:
    host.make_directory("/etc/a/b", 0o700)
    host.write("/etc/a/b/file", Asset(b"x", 0o600))
    assert (tmp_path / "etc/a/b/file").read_bytes() == b"x"
    assert host.mode("/etc/a/b") == 0o700
    assert host.matches("/etc/a/b/file", Asset(b"x", 0o600))
    assert not host.matches("/etc/a/b/file", Asset(b"x", 0o644)), "the mode counts"
    assert host.files_below("/etc/a") == ["/etc/a", "/etc/a/b/file"]


def test_missing_directories_are_listed_from_the_top(host: Host) -> None:
    host.make_directory("/etc")
    assert host.missing_directories("/etc/a/b") == ["/etc/a", "/etc/a/b"]
    assert host.missing_directories("/etc") == []


def test_temporary_files_are_recognised_by_name(host: Host, tmp_path: Path) -> None:
    """Other hidden files are not ours."""
    (tmp_path / ".file.yaml.a1b2_3c4").touch()
    (tmp_path / ".file.yaml.swp").touch()
    (tmp_path / ".other.yaml.a1b2c3d4").touch()
    assert host.temporary_files("/file.yaml") == ["/.file.yaml.a1b2_3c4"]


def test_remove_tree_does_not_follow_a_symbolic_link(host: Host, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/file").touch()
    (tmp_path / "ours").symlink_to(tmp_path / "foreign")
    host.remove_tree("/ours")
    assert not host.exists("/ours")
    assert (tmp_path / "foreign/file").exists()


def test_a_failed_removal_names_the_path(host: Host, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OperatorError, match="cannot remove /folder: Is a directory"):
        host.remove("/folder")


def test_a_directory_with_files_is_not_removed(host: Host, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").touch()
    host.remove_directory("/folder")
    assert host.exists("/folder/file")


def test_a_listener_is_found_with_its_process(host: Host) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert host.listens(port, [os.getpid()])
        assert not host.listens(port, [os.getppid()])
    assert not host.listens(port, [os.getpid()])


def test_http_get_without_a_listener_returns_status_0_and_the_reason(host: Host) -> None:
    status, reason = host.http_get(free_port(), "/healthz")
    assert (status, reason) == (0, b"Connection refused")


def test_a_socket_accepts_only_while_a_process_listens(host: Host, tmp_path: Path) -> None:
    """Also one with a path longer than a socket address."""
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    here = os.getcwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("s")
            listener.listen()
            assert host.socket_accepts(f"/{folder.name}/s")
    finally:
        os.chdir(here)
    assert not host.socket_accepts(f"/{folder.name}/s")


def test_the_lock_leaves_no_file(host: Host, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    with host.locked("/etc/not/there/yet"):
        with pytest.raises(OperatorError, match="another bootbridge"), host.locked("/etc/not/there/yet"):
            pass
        assert list(tmp_path.rglob("*")) == [tmp_path / "etc"]
    with host.locked("/etc/not/there/yet"):
        pass
