"""All that a demo makes on this machine, and its removal."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from bootbridge.demo.interrupts import Interrupts
from bootbridge.demo.network import Namespaces
from bootbridge.demo.processes import Programs

# sockaddr_un holds 108 bytes with the final zero.
SOCKET_PATH_BYTES_MAX = 107


class Workshop:
    """A directory, namespaces and programs. `clean_up` may be called at any moment, and twice."""

    def __init__(self, interrupts: Interrupts) -> None:
        name = f"bb-demo-{os.getpid()}"
        with interrupts.held():
            self.directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_directory_for_sockets(name)))
        self.namespaces = Namespaces(name)
        self.programs = Programs(self.directory, interrupts)

    @property
    def unix_socket(self) -> str:
        return str(self.directory / "proxy.sock")

    def clean_up(self, waiting: Callable[[str], None]) -> None:
        self.programs.stop(waiting)
        self.namespaces.remove()
        shutil.rmtree(self.directory, ignore_errors=True)

    def left(self) -> list[str]:
        """What is still there, looked up now."""
        namespaces = [f"network namespace {name}" for name in self.namespaces.left()]
        directory = [f"directory {self.directory}"] if self.directory.exists() else []
        return self.programs.left() + namespaces + directory

    def made(self) -> str:
        """What there was to remove."""
        namespaces = f"{self.namespaces.made} network namespaces, " if self.namespaces.made else ""
        return f"{self.programs.started} processes, {namespaces}1 directory"


def _directory_for_sockets(name: str) -> str:
    """The usual temporary directory, unless it is too deep for a unix socket."""
    usual = tempfile.gettempdir()
    longest = os.path.join(usual, f"{name}-xxxxxxxx", "proxy.sock")
    return usual if len(os.fsencode(longest)) <= SOCKET_PATH_BYTES_MAX else "/tmp"
