"""A real terminal for programs under test: a tmux session of its own, driven by keys, read as a screen."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support.not_run import not_run
from tests.support.process_program import until

WAIT_SECONDS = 30.0


class TmuxTerminal:
    """Runs a shell without startup files. `close` ends the session and everything in it."""

    def __init__(
        self, width: int = 120, height: int = 40, *, environment: dict[str, str] | None = None
    ) -> None:
        if shutil.which("tmux") is None:
            not_run("missing tmux: apt-get install tmux")
        # A short path: the kernel limits the socket's path to 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="bbt", dir="/tmp"))
        self._socket = self._folder / "s"
        settings = {"PS1": "prompt> ", "TERM": "screen-256color", "LANG": "C.UTF-8", **(environment or {})}
        shell = ["env", *(f"{name}={value}" for name, value in settings.items()), "sh"]
        self._tmux(
            *("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height)), shlex.join(shell)
        )
        self.until_shows("prompt>")

    def _tmux(self, *words: str) -> str:
        argv = ["tmux", "-u", "-S", str(self._socket), *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_SECONDS)
        assert done.returncode == 0, f"{shlex.join(argv)}: {done.stderr}"
        return done.stdout

    def type(self, text: str) -> None:
        """Sends a line to the shell or program, and enter."""
        self._tmux("send-keys", "-l", text)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Sends keys by tmux's names: `q`, `Down`, `C-c`."""
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def lines(self) -> list[str]:
        return self.screen().splitlines()

    def is_plain(self) -> bool:
        """Whether the cursor is visible and the main screen is shown."""
        return self._tmux("display-message", "-p", "#{cursor_flag} #{alternate_on}").split() == ["1", "0"]

    def until_shows(self, *texts: str) -> str:
        """Waits for a screen with all of them: tmux may have read only a part of what was written at once."""

        def has_all(screen: str) -> bool:
            return all(text in screen for text in texts)

        return self._until(has_all, f"the terminal shows {', '.join(map(repr, texts))}")

    def until_hides(self, text: str) -> str:
        return self._until(lambda screen: text not in screen, f"the terminal hides {text!r}")

    def _until(self, condition: Callable[[str], bool], what: str) -> str:
        seen = ""

        def holds() -> bool:
            nonlocal seen
            seen = self.screen()
            return condition(seen)

        try:
            until(holds, what, WAIT_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{seen}") from None
        return seen

    def close(self) -> None:
        subprocess.run(
            ["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, timeout=WAIT_SECONDS
        )
        shutil.rmtree(self._folder, ignore_errors=True)
