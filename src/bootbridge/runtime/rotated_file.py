"""A file of lines that may be renamed or removed at any time; later lines go to a new file at its path."""

from __future__ import annotations

import os
import stat
import time
from typing import Final

from bootbridge.runtime import logs
from bootbridge.runtime.line_writer import LineWriter

# Seconds between two log lines about lost lines.
REPORT_SECONDS: Final = 10.0


class RotatedFile(LineWriter):
    """Appends whole lines, each with one newline at its end, in a thread of its own.

    Before each write the thread compares the open file with the one at ``path``. If it was renamed or
    removed, or after ``reopen``, it opens ``path`` again. While that fails, it keeps the file that it has.
    Lost lines are logged as ``message``; the file has no trace of them. Only one process may write to it.
    """

    def __init__(self, path: str, message: str, *, bytes_max: int) -> None:
        """Opens the file for appending; raises OSError. An empty path is stdout, which stays open."""
        self._path = path
        self._message = message
        self._reopen = False
        self._unreported = 0
        self._reported_at = -REPORT_SECONDS
        super().__init__(_open(path) if path else 1, _no_line, bytes_max=bytes_max)

    def reopen(self) -> None:
        """Opens the path again, also if it still is the same file."""
        self._reopen = True
        if not self.waiting_bytes:
            self.write(b"")  # wakes the thread

    def close(self) -> None:
        """Waits a moment for what is queued, then closes the file."""
        super().close()
        if self.flush():
            self._report_lost()
            if self._path:
                os.close(self._fd)

    # --- in the writer's thread

    def _write_out(self, data: bytes) -> int:
        if self._path:
            self._follow_path()
        written = super()._write_out(data)
        fragment = written - (data.rfind(b"\n", 0, written) + 1)
        if fragment and written < len(data):
            self._cut(fragment)
        return written

    def _follow_path(self) -> None:
        reopen, self._reopen = self._reopen, False
        if not reopen and _identity(self._path) == _identity(self._fd):
            return
        try:
            fd = _open(self._path)
        except OSError as error:
            logs.event(
                "server", logs.WARNING, "file not opened again", file=self._path, reason=error.strerror
            )
            return
        os.close(self._fd)
        self._fd = fd

    def _cut(self, size: int) -> None:
        """Removes the part of a line that a full disk has left at the end."""
        try:
            found = os.fstat(self._fd)
            if stat.S_ISREG(found.st_mode):
                os.ftruncate(self._fd, found.st_size - size)
        except OSError:
            pass  # the disk is broken, which the lost lines show

    def _on_batch_written(self, lost: int) -> None:
        self._unreported += lost
        if self._unreported and time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._report_lost()

    def _report_lost(self) -> None:
        if self._unreported:
            reason = self.error or "the file was not written fast enough"
            logs.event("server", logs.WARNING, self._message, count=self._unreported, reason=reason)
            self._reported_at = time.monotonic()
            self._unreported = 0


def _open(path: str) -> int:
    # Not blocking: opening a named pipe without a reader fails instead of waiting for one.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    return os.open(path, flags, 0o600)


def _identity(file: str | int) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _no_line(count: int) -> bytes:
    return b""
