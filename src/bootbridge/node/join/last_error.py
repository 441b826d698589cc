"""The reason why the last attempt to get a ticket failed, stored for `bootbridge node status`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bootbridge.common.files import Asset, write_file
from bootbridge.errors import OperatorError
from bootbridge.runtime import logs

FILE: Final = "last-join-error"
CHARACTERS_MAX: Final = 4096


class LastJoinError:
    """A file in the run directory, which belongs to root and is cleared by a reboot."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._saved = ""

    def save(self, text: str) -> None:
        """Best effort: a write error is only logged."""
        if text == self._saved:
            return
        self._saved = text
        try:
            write_file(self._path, Asset(text[:CHARACTERS_MAX].encode(errors="replace"), 0o600))
        except (OSError, OperatorError) as error:
            logs.event("node", logs.DEBUG, "last join error not saved", error=str(error))

    def clear(self) -> None:
        self._saved = ""
        self._path.unlink(missing_ok=True)

    def read(self) -> str:
        """Returns an empty string if no attempt has failed."""
        try:
            return self._path.read_text(errors="replace")
        except FileNotFoundError:
            return ""
