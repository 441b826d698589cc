"""The replacement for systemd on blank instances: `systemctl` starts and stops the kubelet."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from bootbridge.lab import kubelet_supervisor
from bootbridge.lab.kubelet_supervisor import INACTIVE, SupervisedKubelet
from tests.support.locks import waits_for_a_lock

# Logs its arguments, then runs until it is killed.
KUBELET = '#!/bin/sh\necho "$@" >> {log}\nexec sleep 1000\n'
WAIT_SECONDS = 20.0


@dataclass(frozen=True)
class Instance:
    root: Path

    @property
    def program(self) -> list[str]:
        script = kubelet_supervisor.__file__
        return [sys.executable, "-I", "-S", script, str(self.root / "run"), str(self.root / "home")]

    def systemctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.program, "systemctl", *words], capture_output=True, text=True, timeout=60
        )

    def configure(self, flags: str = "") -> None:
        (self.root / "home" / "kubeadm-flags.env").write_text(f'KUBELET_KUBEADM_ARGS="{flags}"\n')
        (self.root / "home" / "config.yaml").write_text("{}")

    def pid(self) -> int:
        try:
            return int((self.root / "run" / "pid").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def log(self) -> str:
        try:
            return (self.root / "log").read_text()
        except FileNotFoundError:
            return ""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    instance = Instance(tmp_path)
    (tmp_path / "home").mkdir()
    kubelet = tmp_path / "kubelet"
    kubelet.write_text(KUBELET.format(log=tmp_path / "log"))
    kubelet.chmod(0o755)
    process = subprocess.Popen([*instance.program, "supervise", str(kubelet)])
    until((tmp_path / "run").exists)
    yield instance
    instance.systemctl("stop", "kubelet")
    process.kill()
    process.wait()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_kubelet_starts_once_configured_with_kubeadm_s_flags(instance: Instance) -> None:
    assert instance.systemctl("enable", "--now", "kubelet.service").returncode == 0
    assert instance.systemctl("is-active", "kubelet").stdout == "active\n"
    assert not instance.pid()
    instance.configure("--node-ip=10.0.0.11 --v=2")
    until(instance.log)
    assert "--kubeconfig=/etc/kubernetes/kubelet.conf" in instance.log()
    assert "--node-ip=10.0.0.11 --v=2" in instance.log()


def test_configured_kubelet_does_not_run_before_start(instance: Instance) -> None:
    """As after a reboot, until the bootstrapper has measured the node again."""
    instance.configure()
    assert instance.systemctl("is-active", "kubelet").returncode == INACTIVE
    assert not instance.log()


def test_stop_and_restart_wait_until_the_old_kubelet_has_ended(
    instance: Instance,
) -> None:
    instance.configure()
    instance.systemctl("start", "kubelet")
    until(instance.pid)
    first = instance.pid()
    assert instance.systemctl("restart", "kubelet").returncode == 0
    assert not alive(first)
    until(instance.pid)
    second = instance.pid()
    assert instance.systemctl("stop", "kubelet").returncode == 0
    assert not alive(second)
    assert instance.systemctl("is-active", "kubelet").stdout == "inactive\n"


def test_stop_waits_for_a_starting_kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop comes between the supervisor's check and the start of the process."""
    instance = Instance(tmp_path)
    for name in ("run", "home"):
        (tmp_path / name).mkdir()
    instance.configure()
    service = SupervisedKubelet(tmp_path / "run", tmp_path / "home")
    service.start()
    is_wanted, is_stopped = threading.Event(), threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def start(argv: list[str], **_: object) -> subprocess.Popen[bytes]:
        is_wanted.set()
        assert is_stopped.wait(WAIT_SECONDS)
        started.append(subprocess.Popen(["sleep", "1000"]))
        return started[0]

    late = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(kubelet_supervisor, "subprocess", late)
    supervisor = threading.Thread(target=service.run_once, args=["kubelet"])
    supervisor.start()
    assert is_wanted.wait(WAIT_SECONDS)
    with subprocess.Popen([*instance.program, "systemctl", "stop", "kubelet"]) as stop:
        until(lambda: stop.poll() is not None or waits_for_a_lock(stop.pid))
        is_stopped.set()
        assert stop.wait(WAIT_SECONDS) == 0
    supervisor.join(WAIT_SECONDS)
    left = [each for each in started if each.poll() is None]
    for each in left:
        each.kill()
    assert started
    assert left == []


def test_kubelet_that_ends_is_restarted(instance: Instance) -> None:
    instance.configure()
    instance.systemctl("start", "kubelet")
    until(instance.pid)
    first = instance.pid()
    os.kill(first, 9)
    until(lambda: instance.pid() not in (0, first))


def test_other_units_are_inactive_and_other_commands_are_rejected(instance: Instance) -> None:
    """kubeadm changes resolvConf if systemd-resolved is active."""
    assert instance.systemctl("is-active", "systemd-resolved").stdout == "inactive\n"
    assert instance.systemctl("daemon-reload").returncode == 0
    assert instance.systemctl("edit", "kubelet").returncode == 1
