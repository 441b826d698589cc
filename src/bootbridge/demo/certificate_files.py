"""All that a demo makes on this machine, and its removal."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from bootbridge.demo.interrupts import Interrupts
from bootbridge.demo.network import Namespaces
from bootbridge.demo.processes import Programs
from bootbridge.errors import OperatorError

# sockaddr_un holds 108 bytes with the final zero.
SOCKET_PATH_BYTES_MAX = 107


class Workshop:
    """A directory, namespaces and programs. `clean_up` may be called at any moment, and twice."""

    def __init__(self, interrupts: Interrupts) -> None:
        name = f"bb-demo-{os.getpid()}"
        # Named now, made by `open`: there is no moment in which it exists and we do not know it.
        self.directory = _parent_of_sockets(name) / f"{name}-{secrets.token_hex(4)}"
        self.namespaces = Namespaces(name, interrupts)
        self.programs = Programs(self.directory, interrupts)

    def open(self) -> None:
        try:
            self.directory.mkdir(mode=0o700)
        except OSError as error:
            raise OperatorError(
                f"cannot make the directory {self.directory}: {error.strerror}",
                hint="set TMPDIR to one that you may write to",
            ) from error

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


def _parent_of_sockets(name: str) -> Path:
    """The usual temporary directory, unless it is too deep for a unix socket."""
    usual = tempfile.gettempdir()
    longest = os.path.join(usual, f"{name}-xxxxxxxx", "proxy.sock")
    return Path(usual if len(os.fsencode(longest)) <= SOCKET_PATH_BYTES_MAX else "/tmp")
