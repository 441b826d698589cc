"""A containerd of its own: root, state, socket and /run are its own, so that no other containerd is touched.

It has no network configuration and no registry: it knows only the images that are imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.not_run import not_run
from tests.support.process_program import until

PROGRAMS = ("containerd", "ctr", "runc", "unshare", "nsenter")
# containerd and its shims use /run/containerd whatever their configuration says. When containerd, the first
# process of its PID namespace, is killed, shims and containers are killed with it, and the mounts go, too.
START = """
mount --make-rprivate / && mount -t proc proc /proc && mount -t tmpfs tmpfs /run
exec containerd --config "$1"
"""
CONFIG = """\
version = 2
root = "{folder}/root"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[debug]
  level = "warn"
[grpc]
  address = "{socket}"
"""
# Not the usual path: until its own /run is mounted, that would be the socket of this machine's containerd.
SOCKET = "/run/containerd-of-a-test/containerd.sock"


class Containerd:
    def __init__(self, folder: Path) -> None:
        config = folder / "config.toml"
        config.write_text(CONFIG.format(folder=folder, socket=SOCKET))
        namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
        self._process = subprocess.Popen([*namespaces, "sh", "-ec", START, "sh", str(config)])
        self._started: list[subprocess.Popen[bytes]] = []

    def _command(self, *words: str) -> list[str]:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        pid = until(lambda: children.read_text().split(), "containerd has started")[0]
        return ["nsenter", f"--target={pid}", "--mount", "--pid", "ctr", f"--address={SOCKET}", *words]

    def ctr(self, *words: str) -> str:
        done = subprocess.run(self._command(*words), capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"ctr {' '.join(words)}: {done.stderr}"
        return done.stdout

    def wait_until_ready(self) -> None:
        def answers() -> bool:
            assert self._process.poll() is None, "containerd ended"
            return subprocess.run(self._command("version"), capture_output=True, check=False).returncode == 0

        until(answers, "containerd answers")

    def import_archive(self, archive: Path) -> str:
        """Returns the name of the image in the archive."""
        before = set(self.ctr("images", "list", "-q").split())
        self.ctr("images", "import", str(archive))
        (name,) = set(self.ctr("images", "list", "-q").split()) - before
        return name

    def run(self, image: str, name: str, *command: str) -> str:
        """Returns the output of a container that ends."""
        return self.ctr("run", "--rm", "--cgroup=", image, name, *command)

    def start(self, image: str, name: str, folder: Path, *command: str) -> None:
        """Starts a container in this machine's network, with a folder at the same path."""
        mount = f"--mount=type=bind,src={folder},dst={folder},options=rbind:rw"
        words = ("run", "--rm", "--cgroup=", "--net-host", mount, image, name, *command)
        self._started.append(subprocess.Popen(self._command(*words)))

    def close(self) -> None:
        self._process.kill()
        for process in (self._process, *self._started):
            process.wait(30)


@contextmanager
def containerd(folder: Path) -> Iterator[Containerd]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        not_run(f"not found: {', '.join(missing)} (on Debian: apt-get install containerd runc)")
    if os.geteuid() != 0:
        not_run("containerd needs root")
    started = Containerd(folder)
    try:
        started.wait_until_ready()
        yield started
    finally:
        started.close()
