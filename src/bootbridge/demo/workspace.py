"""Everything that a demo creates on this machine, and its removal."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from bootbridge.demo.interrupts import Interrupts
from bootbridge.demo.network import DemoNamespaces
from bootbridge.demo.processes import DemoProcesses
from bootbridge.errors import OperatorError

# sockaddr_un holds 108 bytes, including the terminating zero.
SOCKET_PATH_BYTES_MAX = 107


class DemoWorkspace:
    """A directory, namespaces and processes. `remove` may be called at any time and more than once."""

    def __init__(self, interrupts: Interrupts) -> None:
        name = f"bb-demo-{os.getpid()}"
        # Named here, created by `create`: `remove` knows the directory whenever an exception comes.
        self.directory = _parent_of_sockets(name) / f"{name}-{secrets.token_hex(4)}"
        self.namespaces = DemoNamespaces(name, interrupts)
        self.processes = DemoProcesses(self.directory, interrupts)

    def create(self) -> None:
        try:
            self.directory.mkdir(mode=0o700)
        except OSError as error:
            raise OperatorError(
                f"cannot create directory: {error.strerror}",
                subject=str(self.directory),
                hint="set TMPDIR to a writable directory",
            ) from error

    @property
    def unix_socket(self) -> str:
        return str(self.directory / "proxy.sock")

    def remove(self, waiting: Callable[[str], None]) -> None:
        self.processes.stop(waiting)
        self.namespaces.remove()
        shutil.rmtree(self.directory, ignore_errors=True)

    def left(self) -> list[str]:
        """Returns what exists now, as the system shows it."""
        namespaces = [f"network namespace {name}" for name in self.namespaces.left()]
        directory = [f"directory {self.directory}"] if self.directory.exists() else []
        return self.processes.left() + namespaces + directory

    def created(self) -> str:
        namespaces = f"{self.namespaces.count} network namespaces, " if self.namespaces.count else ""
        return f"{self.processes.count} processes, {namespaces}1 directory"


def _parent_of_sockets(name: str) -> Path:
    """Returns the usual temporary directory, or /tmp if its path is too long for a unix socket."""
    usual = tempfile.gettempdir()
    longest = os.path.join(usual, f"{name}-xxxxxxxx", "proxy.sock")
    return Path(usual if len(os.fsencode(longest)) <= SOCKET_PATH_BYTES_MAX else "/tmp")
