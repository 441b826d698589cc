"""The bootstrap record and the node state: private, atomic files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bootbridge.common.failures import Fatal
from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import Role
from bootbridge.node.lock.bootstrap_record import (
    RECORD,
    BootstrapRecord,
    FileRecordStore,
    Flow,
    Phase,
    read_record,
    survives_reboot,
)
from bootbridge.node.lock.node_state import FileNodeStateStore, NodeState

RECORDED = BootstrapRecord(Phase.KUBEADM, Flow.JOIN, b"\xaa" * 32, b"\x00work", b"result", 2, "why", "advice")


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    (tmp_path / "boot_id").write_text("first-boot\n")
    return tmp_path / "boot_id"


def test_a_record_is_loaded_as_saved(tmp_path: Path, boot: Path) -> None:
    records = FileRecordStore.open(tmp_path / "node", boot)
    assert records.load() is None
    records.save(RECORDED)
    records.close()
    again = FileRecordStore.open(tmp_path / "node", boot)
    assert again.load() == RECORDED
    again.close()


def test_the_record_is_readable_by_root_only(tmp_path: Path, boot: Path) -> None:
    before = os.umask(0)
    try:
        records = FileRecordStore.open(tmp_path / "node", boot)
        records.save(RECORDED)
        records.close()
    finally:
        os.umask(before)
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "node").iterdir()} == {0o600}


def test_a_record_of_another_boot_is_deleted(tmp_path: Path, boot: Path) -> None:
    """Its secrets must not survive a reboot, even if the directory does."""
    records = FileRecordStore.open(tmp_path / "node", boot)
    records.save(RECORDED)
    records.close()
    boot.write_text("second-boot\n")
    after = FileRecordStore.open(tmp_path / "node", boot)
    assert after.load() is None
    assert not (tmp_path / "node" / RECORD).exists()
    after.close()


def test_a_second_process_is_rejected_until_the_first_has_exited(tmp_path: Path, boot: Path) -> None:
    """Also if the first was killed: the kernel releases the lock."""
    code = (
        "import sys; from pathlib import Path\n"
        "from bootbridge.node.lock.bootstrap_record import FileRecordStore\n"
        "FileRecordStore.open(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "node"), str(boot)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        with pytest.raises(OperatorError, match="locked by another bootbridge process"):
            FileRecordStore.open(tmp_path / "node", boot)
        first.kill()
        first.wait()
    FileRecordStore.open(tmp_path / "node", boot).close()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"phase": "asleep"}', "not JSON"])
def test_an_invalid_record_is_fatal(tmp_path: Path, boot: Path, text: str) -> None:
    records = FileRecordStore.open(tmp_path / "node", boot)
    (tmp_path / "node" / RECORD).write_text(text)
    with pytest.raises(Fatal) as caught:
        records.load()
    assert "reboot" in caught.value.advice
    records.close()


def test_a_record_can_be_read_without_the_lock(tmp_path: Path, boot: Path) -> None:
    records = FileRecordStore.open(tmp_path / "node", boot)
    assert read_record(tmp_path / "node") == (None, "")
    records.save(RECORDED)
    assert read_record(tmp_path / "node") == (RECORDED, "first-boot")
    records.close()


def test_a_record_does_not_show_its_secrets() -> None:
    assert "work" not in repr(BootstrapRecord(Phase.LOCKED, Flow.JOIN, b"", b"a secret"))
    assert "secret" not in repr(BootstrapRecord(Phase.LOCKED, Flow.JOIN, b"", b"a secret", b"a secret"))


def test_a_directory_that_cannot_be_created_is_an_operator_error(tmp_path: Path, boot: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match="run: Not a directory"):
        FileRecordStore.open(tmp_path / "file" / "node", boot)


def test_a_node_state_is_loaded_as_saved(tmp_path: Path) -> None:
    state_store = FileNodeStateStore(tmp_path / "lib" / "state.json")
    assert state_store.load() is None
    state = NodeState(Role.WORKER, "node-7", b"\xaa" * 32)
    state_store.save(state)
    assert state_store.load() == state
    assert (tmp_path / "lib" / "state.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / "lib" / "state.json").read_text())["clusterID"] == "aa" * 32


@pytest.mark.parametrize("text", ["", "[]", '{"role": "king", "name": "x", "clusterID": ""}'])
def test_an_invalid_node_state_is_fatal(tmp_path: Path, text: str) -> None:
    """If it were ignored, a node could join another cluster."""
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(Fatal, match=r"state\.json"):
        FileNodeStateStore(tmp_path / "state.json").load()


def test_a_symbolic_link_as_directory_is_rejected(tmp_path: Path, boot: Path) -> None:
    """Another user could otherwise choose what is run as root."""
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "node").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OperatorError, match="symbolic link"):
        FileRecordStore.open(tmp_path / "node", boot)
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_directory_of_another_user_is_rejected(
    tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OperatorError, match="owned by another user"):
        FileRecordStore.open(tmp_path / "node", boot)


def test_an_unreadable_record_is_fatal_with_advice(tmp_path: Path, boot: Path) -> None:
    records = FileRecordStore.open(tmp_path / "node", boot)
    (tmp_path / "node" / RECORD).mkdir()
    with pytest.raises(Fatal, match="reboot"):
        records.load()
    records.close()


@pytest.mark.parametrize(
    ("path", "outlives"),
    [("/run/bootbridge-node", False), ("/run/disk/node", True), ("/var/run", True), ("/running", True)],
)
def test_survives_reboot_depends_on_the_visible_mount(tmp_path: Path, path: str, outlives: bool) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\n"
        "none /run ext4 rw 0 0\n"
        "tmpfs /run tmpfs rw,nosuid 0 0\n"
        "/dev/sdb1 /run/disk xfs rw 0 0\n"
    )
    assert survives_reboot(Path(path), mounts) is outlives
