"""A node's files, processes and listeners, below a root directory (default `/`)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from bootbridge.common.files import Asset, read_file, write_error, write_file
from bootbridge.errors import OperatorError

PROBE_SECONDS_MAX = 2.0
_LISTENING = "0A"


class Host:
    """Accesses a node. All paths are absolute paths on the node; only this class adds the root."""

    def __init__(self, root: Path | str = "/") -> None:
        self.root = Path(root)

    def __repr__(self) -> str:
        return f"<Host {self.root}>"

    def path(self, node_path: str) -> Path:
        return self.root / node_path.lstrip("/")

    # --- reading

    def exists(self, node_path: str) -> bool:
        """Whether the path exists; a broken link does."""
        return os.path.lexists(self.path(node_path))

    def read(self, node_path: str) -> bytes | None:
        path = self.path(node_path)
        return read_file(path) if path.exists() else None

    def mode(self, node_path: str) -> int:
        return self.path(node_path).stat().st_mode & 0o7777

    def matches(self, node_path: str, asset: Asset) -> bool:
        """Whether the file exists with this content and mode."""
        return self.read(node_path) == asset.data and self.mode(node_path) == asset.mode

    def files_below(self, node_path: str) -> list[str]:
        """Returns the directory and every file below it; nothing if it does not exist."""
        if not self.exists(node_path):
            return []
        below = sorted(
            path for path in self.path(node_path).rglob("*") if path.is_symlink() or not path.is_dir()
        )
        return [node_path, *(f"/{path.relative_to(self.root)}" for path in below)]

    def temporary_files(self, node_path: str) -> list[str]:
        """Returns temporary files that an interrupted write to this path left behind."""
        path = self.path(node_path)
        pattern = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}")
        names = os.listdir(path.parent) if path.parent.is_dir() else []
        folder = node_path.rpartition("/")[0]
        return [f"{folder}/{name}" for name in sorted(names) if pattern.fullmatch(name)]

    def missing_directories(self, node_path: str) -> list[str]:
        """Returns the missing directories of this path, the uppermost first."""
        missing: list[str] = []
        while node_path and not self.exists(node_path):
            missing.insert(0, node_path)
            node_path = node_path.rpartition("/")[0]
        return missing

    # --- changing

    def write(self, node_path: str, asset: Asset) -> None:
        write_file(self.path(node_path), asset)

    def sync_directory(self, directory: str) -> None:
        """Makes the entries of the directory durable (fsync)."""
        path = self.path(directory)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise write_error(path, error) from error

    def make_directory(self, node_path: str, mode: int = 0o755) -> None:
        """Creates the directory and its parents; an existing one keeps its mode."""
        path = self.path(node_path)
        if path.is_dir():
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=mode)
            path.chmod(mode)
        except OSError as error:
            raise write_error(path, error) from error

    def remove(self, node_path: str) -> None:
        """Removes a file, socket or link if it exists."""
        self._removing(node_path, lambda path: path.unlink(missing_ok=True))

    def remove_directory(self, node_path: str) -> None:
        """Removes a directory if it is empty."""
        with contextlib.suppress(OSError):
            self.path(node_path).rmdir()

    def remove_tree(self, node_path: str) -> None:
        """Removes a directory and everything below it; does not follow links."""
        if self.path(node_path).is_symlink():
            self.remove(node_path)
        elif self.exists(node_path):
            self._removing(node_path, shutil.rmtree)

    def _removing(self, node_path: str, act: Callable[[Path], None]) -> None:
        try:
            act(self.path(node_path))
        except OSError as error:
            hint = "fix this and run `bootbridge down` again, or remove it by hand"
            raise OperatorError(f"cannot remove {node_path}: {error.strerror or error}", hint=hint) from error

    @contextlib.contextmanager
    def locked(self, node_path: str) -> Iterator[None]:
        """Holds an exclusive lock on the nearest existing directory, so that no lock file remains."""
        path = self.path(node_path)
        while not path.is_dir() and path != self.root:
            path = path.parent
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            hint = "wait until it has finished"
            raise OperatorError("another bootbridge process is running on this node", hint=hint) from None
        finally:
            os.close(descriptor)

    # --- processes, sockets, ports

    def processes_with_argument(self, argument: str) -> list[int]:
        """Returns the processes with this text in one of their arguments."""
        own, wanted = os.getpid(), os.fsencode(argument)
        return sorted(
            int(entry)
            for entry in os.listdir("/proc")
            if entry.isdigit() and int(entry) != own and wanted in _command_line(int(entry))
        )

    def listens(self, port: int, pids: list[int]) -> bool:
        """Whether one of these processes listens on the TCP port."""
        inodes = set(_listening_inodes(port))
        return any(inode in inodes for pid in pids for inode in _socket_inodes(pid))

    def http_get(self, port: int, page: str) -> tuple[int, bytes]:
        """Gets a page from a port on loopback; returns status 0 and the reason if there is no answer."""
        import http.client  # costs 40 ms, and most commands probe nothing

        connection = http.client.HTTPConnection("localhost", port, timeout=PROBE_SECONDS_MAX)
        try:
            connection.request("GET", page)
            answer = connection.getresponse()
            return answer.status, answer.read(1 << 20)
        except (OSError, http.client.HTTPException) as error:
            return 0, str(getattr(error, "strerror", None) or error or type(error).__name__).encode()
        finally:
            connection.close()

    def socket_accepts(self, node_path: str) -> bool:
        """Whether a unix socket accepts connections; a relative path avoids the limit of 108 bytes."""
        path = self.path(node_path)
        if not path.is_socket():
            return False
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(PROBE_SECONDS_MAX)
                return probe.connect_ex(f"/proc/self/fd/{folder}/{path.name}") == 0
        except OSError:
            return False
        finally:
            os.close(folder)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _socket_inodes(pid: int) -> Iterator[str]:
    try:
        entries = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
            if target.startswith("socket:["):
                yield target[8:-1]
