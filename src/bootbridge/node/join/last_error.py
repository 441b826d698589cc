"""Why an instance still waits: the last that was said to it, kept for whoever looks (`node status`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bootbridge.common.files import Asset, write_file
from bootbridge.errors import OperatorError
from bootbridge.runtime import logs

FILE: Final = "last-answer"
CHARACTERS_MAX: Final = 4096


class LastJoinError:
    """In the run directory, which is root's and does not outlive the boot."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._kept = ""

    def keep(self, text: str) -> None:
        """Nothing depends on it: what cannot be written is only missing."""
        if text == self._kept:
            return
        self._kept = text
        try:
            write_file(self._path, Asset(text[:CHARACTERS_MAX].encode(errors="replace"), 0o600))
        except (OSError, OperatorError) as error:
            logs.event("node", logs.DEBUG, "the last answer cannot be kept", why=str(error))

    def forget(self) -> None:
        self._kept = ""
        self._path.unlink(missing_ok=True)

    def read(self) -> str:
        """Empty if there was none yet."""
        try:
            return self._path.read_text(errors="replace")
        except FileNotFoundError:
            return ""
