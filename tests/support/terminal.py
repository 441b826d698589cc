"""A real terminal of a given width, and what a program wrote to it."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import struct
import termios
import threading

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_REDRAWN = re.compile(r"[^\n]*\r\x1b\[K")


class PseudoTerminal:
    """`out` is a text file on the terminal; `text` closes it and returns what was written."""

    def __init__(self, columns: int) -> None:
        self._controller, descriptor = pty.openpty()
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.out = os.fdopen(descriptor, "w", encoding="utf-8")
        self._pieces: list[bytes] = []
        # A terminal that is not read blocks its writer.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._controller, 65536)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return  # Linux reports a closed other end this way
            if not piece:
                return
            self._pieces.append(piece)

    def text(self) -> str:
        self.out.close()
        self._reader.join()
        os.close(self._controller)
        return b"".join(self._pieces).decode().replace("\r\n", "\n")


def without_colour(text: str) -> str:
    return COLOUR.sub("", text)


def without_redrawn(text: str) -> str:
    """Removes lines that were overwritten, such as those of progress."""
    return _REDRAWN.sub("", text)


def squeezed(text: str) -> str:
    """Removes colours and all blanks, so that wrapped texts can be compared."""
    return re.sub(r"\s+", "", without_colour(text))
