"""The kubelet is started by systemd, by configured commands, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootbridge.common.failures import Fatal, Transient
from bootbridge.node.kubeadm.kubelet_service import (
    KubeletCommands,
    KubeletFailed,
    systemd_kubelet,
    unmanaged_kubelet,
)


@pytest.fixture
def systemctl(tmp_path: Path) -> Path:
    path = tmp_path / "systemctl"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    path.chmod(0o755)
    return path


async def test_systemd_enables_starts_and_stops_the_kubelet(systemctl: Path) -> None:
    kubelet = systemd_kubelet(str(systemctl))
    await kubelet.start()
    await kubelet.stop()
    calls = (systemctl.parent / "calls").read_text().splitlines()
    assert calls == ["enable --now kubelet.service", "stop kubelet.service"]


async def test_configured_commands_are_run(tmp_path: Path) -> None:
    kubelet = KubeletCommands(["touch", str(tmp_path / "started")])
    await kubelet.start()
    await kubelet.stop()
    assert (tmp_path / "started").exists()


async def test_an_unmanaged_kubelet_runs_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    await unmanaged_kubelet().start()
    await unmanaged_kubelet().stop()


async def test_a_failed_start_is_transient() -> None:
    kubelet = KubeletCommands(["/bin/sh", "-c", "echo Unit kubelet.service not found; exit 5"])
    with pytest.raises(KubeletFailed, match=r"status 5: Unit kubelet\.service not found"):
        await kubelet.start()
    assert issubclass(KubeletFailed, Transient)


async def test_a_missing_systemctl_is_fatal() -> None:
    with pytest.raises(Fatal, match="systemctl"):
        await systemd_kubelet("/nowhere/systemctl").start()
