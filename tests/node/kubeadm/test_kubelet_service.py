"""The kubelet is started by whoever starts it on this machine."""

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


async def test_systemd_enables_and_starts_it_and_stops_it(systemctl: Path) -> None:
    kubelet = systemd_kubelet(str(systemctl))
    await kubelet.start()
    await kubelet.stop()
    calls = (systemctl.parent / "calls").read_text().splitlines()
    assert calls == ["enable --now kubelet.service", "stop kubelet.service"]


async def test_a_command_of_the_operators_is_run(tmp_path: Path) -> None:
    kubelet = KubeletCommands(["touch", str(tmp_path / "started")])
    await kubelet.start()
    await kubelet.stop()
    assert (tmp_path / "started").exists()


async def test_where_somebody_else_starts_it_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    await unmanaged_kubelet().start()
    await unmanaged_kubelet().stop()


async def test_a_start_that_fails_may_be_tried_again_and_says_why() -> None:
    kubelet = KubeletCommands(["/bin/sh", "-c", "echo Unit kubelet.service not found; exit 5"])
    with pytest.raises(KubeletFailed, match=r"status 5: Unit kubelet\.service not found"):
        await kubelet.start()
    assert issubclass(KubeletFailed, Transient)


async def test_a_machine_without_systemd_is_told_so() -> None:
    with pytest.raises(Fatal, match="systemctl"):
        await systemd_kubelet("/nowhere/systemctl").start()
