"""Replaces systemd on a blank instance: runs the kubelet, and answers kubeadm's `systemctl` calls.

A lab node has no systemd, but kubeadm and the bootstrapper start, stop and restart the kubelet through it.
The supervisor runs the kubelet while a file says that it is wanted and a configuration exists, and restarts
it when it ends. `systemctl` writes that file and waits for the effect. Both use only the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# As in the systemd unit of Kubernetes' packages.
KUBECONFIGS = (
    "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
    "--kubeconfig=/etc/kubernetes/kubelet.conf",
)
UNIT = "kubelet"
PAUSE_SECONDS = 0.1
# Between the end of a kubelet and the next start; the systemd unit waits 10 s.
RESTART_SECONDS = 1.0
STOP_SECONDS = 20.0
INACTIVE = 3


@dataclass(frozen=True)
class SupervisedKubelet:
    """`run` holds state until a reboot; kubeadm writes the kubelet's configuration to `home`."""

    run: Path
    home: Path

    @property
    def wanted(self) -> Path:
        return self.run / "wanted"

    @property
    def pid(self) -> Path:
        return self.run / "pid"

    @property
    def config(self) -> Path:
        return self.home / "config.yaml"

    def supervise(self, kubelet: str) -> None:
        """Runs the kubelet whenever it is wanted and configured; never returns."""
        while True:
            ran = self.run_once(kubelet)
            time.sleep(RESTART_SECONDS if ran and self.wanted.exists() else PAUSE_SECONDS)

    def run_once(self, kubelet: str) -> bool:
        """Runs the kubelet to its end if it is wanted and configured; returns whether it ran."""
        with self._locked():
            if not (self.wanted.exists() and self.config.exists()):
                return False
            argv = [kubelet, *KUBECONFIGS, f"--config={self.config}", *self._flags_of_kubeadm()]
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
            self.pid.write_text(str(process.pid))
        process.wait()
        self.pid.unlink(missing_ok=True)
        return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds a lock, so that `stop` does not come between the check and the record of the process id."""
        with (self.run / "lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield

    def _flags_of_kubeadm(self) -> list[str]:
        """Returns the flags in kubeadm-flags.env: KUBELET_KUBEADM_ARGS="…"."""
        try:
            return shlex.split(
                shlex.split((self.home / "kubeadm-flags.env").read_text())[0].partition("=")[2]
            )
        except (FileNotFoundError, IndexError):
            return []

    def start(self) -> None:
        self.wanted.touch()

    def stop(self) -> None:
        with self._locked():
            self.wanted.unlink(missing_ok=True)
        deadline = time.monotonic() + STOP_SECONDS
        sign = signal.SIGTERM
        while (pid := self._running()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
            sign = signal.SIGKILL if time.monotonic() > deadline else sign
            time.sleep(PAUSE_SECONDS)

    def restart(self) -> None:
        """Stops first: otherwise the supervisor could start another before the old one has ended."""
        self.stop()
        self.start()

    def _running(self) -> int | None:
        try:
            return int(self.pid.read_text())
        except (FileNotFoundError, ValueError):
            return None


def systemctl(service: SupervisedKubelet, words: list[str]) -> int:
    """Runs `systemctl [FLAG …] VERB [UNIT]`; every unit but the kubelet is inactive."""
    verb, *units = [word for word in words if not word.startswith("-")] or [""]
    if verb == "daemon-reload":
        return 0
    if [unit.removesuffix(".service") for unit in units] != [UNIT]:
        print("inactive")
        return INACTIVE
    if verb == "start" or (verb == "enable" and "--now" in words):
        service.start()
    elif verb == "stop":
        service.stop()
    elif verb == "restart":
        service.restart()
    elif verb in ("is-active", "status"):
        print("active" if service.wanted.exists() else "inactive")
        return 0 if service.wanted.exists() else INACTIVE
    elif verb not in ("is-enabled", "enable", "disable"):
        print(f"systemctl: unsupported command {verb!r}", file=sys.stderr)
        return 1
    return 0


def main(argv: list[str]) -> int:
    """RUN HOME supervise KUBELET, or RUN HOME systemctl WORD …"""
    run, home, verb, *words = argv
    service = SupervisedKubelet(Path(run), Path(home))
    service.run.mkdir(mode=0o700, exist_ok=True)
    if verb == "supervise":
        service.supervise(words[0])
    return systemctl(service, words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
