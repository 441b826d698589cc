"""In place of systemd on a blank instance: the kubelet as a service, and `systemctl` as far as kubeadm asks.

A lab node has no systemd, but kubeadm and the node's bootstrapper start, stop and restart the kubelet through
one. The supervisor runs the kubelet while it is wanted and has a configuration, and again when it ends;
`systemctl` says by a file what is wanted, and waits for what comes of it. Both run on the node, with nothing
but the standard library.
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

# As the unit that Kubernetes' packages bring names them.
KUBECONFIGS = (
    "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
    "--kubeconfig=/etc/kubernetes/kubelet.conf",
)
UNIT = "kubelet"
PAUSE_SECONDS = 0.1
# Between the end of a kubelet and the next; a unit waits ten, which a lab has not.
RESTART_SECONDS = 1.0
STOP_SECONDS = 20.0
INACTIVE = 3


@dataclass(frozen=True)
class Service:
    """`run` holds what is true until a reboot, `home` is where kubeadm writes the kubelet's configuration."""

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
        """Run the kubelet whenever it is wanted and can be, for ever."""
        while True:
            ran = self.run_once(kubelet)
            time.sleep(RESTART_SECONDS if ran and self.wanted.exists() else PAUSE_SECONDS)

    def run_once(self, kubelet: str) -> bool:
        """Run it to its end, if it is wanted and can be."""
        with self._alone():
            if not (self.wanted.exists() and self.config.exists()):
                return False
            argv = [kubelet, *KUBECONFIGS, f"--config={self.config}", *self._flags_of_kubeadm()]
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
            self.pid.write_text(str(process.pid))
        process.wait()
        self.pid.unlink(missing_ok=True)
        return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Between the look at what is wanted and the note of what runs, nobody changes his mind."""
        with (self.run / "lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield

    def _flags_of_kubeadm(self) -> list[str]:
        """KUBELET_KUBEADM_ARGS="…", as kubeadm writes it for the unit."""
        try:
            return shlex.split(
                shlex.split((self.home / "kubeadm-flags.env").read_text())[0].partition("=")[2]
            )
        except (FileNotFoundError, IndexError):
            return []

    def start(self) -> None:
        self.wanted.touch()

    def stop(self) -> None:
        with self._alone():
            self.wanted.unlink(missing_ok=True)
        deadline = time.monotonic() + STOP_SECONDS
        sign = signal.SIGTERM
        while (pid := self._running()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
            sign = signal.SIGKILL if time.monotonic() > deadline else sign
            time.sleep(PAUSE_SECONDS)

    def restart(self) -> None:
        """First not wanted: else the supervisor could begin another before the old one's end was seen."""
        self.stop()
        self.start()

    def _running(self) -> int | None:
        try:
            return int(self.pid.read_text())
        except (FileNotFoundError, ValueError):
            return None


def systemctl(service: Service, words: list[str]) -> int:
    """`systemctl [FLAG …] VERB [UNIT]`: only the kubelet is known, and no other unit is running."""
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
        print(f"the lab's systemctl does not know {verb!r}", file=sys.stderr)
        return 1
    return 0


def main(argv: list[str]) -> int:
    """RUN HOME supervise KUBELET, or RUN HOME systemctl WORD …"""
    run, home, verb, *words = argv
    service = Service(Path(run), Path(home))
    service.run.mkdir(mode=0o700, exist_ok=True)
    if verb == "supervise":
        service.supervise(words[0])
    return systemctl(service, words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
