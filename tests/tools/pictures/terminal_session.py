"""A shell in a real terminal (tmux): types commands, waits for the prompt, captures what is on the screen."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PROMPT = "$ "
_READ_SECONDS = 0.1


class TerminalSession:
    """A shell without the user's configuration. Closing it ends the shell and what runs in it."""

    def __init__(
        self,
        folder: Path,
        *,
        columns: int,
        lines: int = 60,
        where: Callable[[list[str]], list[str]] = lambda argv: argv,
    ) -> None:
        """`where` wraps the shell's command, for example to run it on a node of the lab."""
        # One for each session: the server of the one before may still be ending.
        self._socket = Path(tempfile.mkdtemp(prefix="tmux-", dir=folder)) / "sock"
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm-256color",
            "PS1": PROMPT,
        }
        shell = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), "bash", "--norc"]
        shell += ["--noprofile"]
        size = ["-x", str(columns), "-y", str(lines)]
        configuration = folder / "tmux.conf"
        configuration.write_text("set -g default-terminal tmux-256color\nset -g history-limit 5000\n")
        self._tmux(
            "-f", str(configuration), "new-session", "-d", *size, "-c", str(folder), shlex.join(where(shell))
        )
        self._wait_for_prompt(60)

    def __enter__(self) -> TerminalSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def run(self, command: str, seconds: float = 120) -> None:
        """Types a command and waits until the shell shows its prompt again."""
        self.type(command)
        self._wait_for_prompt(seconds)

    def type(self, command: str) -> None:
        self._tmux("send-keys", "-l", command)
        self._tmux("send-keys", "Enter")
        # The prompt of before is still the last line until the shell has read the command.
        self.wait_for(lambda screen: not _ends_with_prompt(screen), "the command has started", 10)

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def screen(self, *, colours: bool = True) -> str:
        """Returns everything shown so far, without blank lines at the end."""
        options = ["-e"] if colours else []
        return self._tmux("capture-pane", "-p", *options, "-S", "-").rstrip()

    def output(self) -> str:
        """Returns the commands and their output, without the prompt that waits for the next."""
        lines = self.screen().splitlines()
        return "\n".join(lines[:-1] if _ends_with_prompt(self.screen(colours=False)) else lines).rstrip()

    def wait_for(self, condition: Callable[[str], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition(self.screen(colours=False)):
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"pictures: not within {seconds:.0f} s: {what}\n{self.screen(colours=False)}"
                )
            time.sleep(_READ_SECONDS)

    def _wait_for_prompt(self, seconds: float) -> None:
        self.wait_for(_ends_with_prompt, "the prompt is back", seconds)

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._socket), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _ends_with_prompt(screen: str) -> bool:
    lines = screen.rstrip().splitlines()
    return bool(lines) and lines[-1].strip() == PROMPT.strip()
