"""Owns the terminal: alternate screen, hidden cursor, keys without echo; restores everything at the end."""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType

from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from bootbridge.common.terminal.characters import shows_unicode
from bootbridge.top.text import ascii_text

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LFLAG, _CC = 3, 6
# For rich's styles only; nothing is printed with it.
_MEASURES = Console(width=80, color_system=None, markup=False, highlight=False, emoji=False)
_COLORS = ColorSystem.STANDARD  # the 16 colours that every theme defines


def can_control_terminal(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether keys and cursor positions work on standard input and output."""
    return sys.stdin.isatty() and sys.stdout.isatty() and environment.get("TERM", "dumb") not in ("", "dumb")


def ansi(line: Text, *, no_color: bool) -> str:
    """Returns the line with escape sequences for its styles; without colours, bold and reverse are left."""
    drawn = []
    line = line.copy()
    line.stylize_before(line.style)  # rich ignores the style of a text that has no styled parts
    for segment in line.render(_MEASURES):
        style = segment.style.without_color if segment.style and no_color else segment.style
        drawn.append(style.render(segment.text, color_system=_COLORS) if style else segment.text)
    return "".join(drawn).removesuffix("\n")


class TerminalScreen:
    """A context: inside it, `draw` shows frames and `readable` descriptors wake the caller."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._saved = termios.tcgetattr(self._in)
        self._handlers: dict[int, object] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._shown: list[str] = []
        self._wakeup_before = -1
        self._unicode = shows_unicode(sys.stdout, environment)
        self._no_color = bool(environment.get("NO_COLOR"))
        self.ended_by: int = 0  # the signal that ends the program
        self.resized = False

    @property
    def readable(self) -> list[int]:
        """Descriptors that become readable on a key and on a signal or `wake`."""
        return [self._in, self._wake_read]

    def wake(self) -> None:
        """Makes the loop run; safe in any thread."""
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # it is already awake

    def __enter__(self) -> TerminalScreen:
        self._wakeup_before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in ENDING_SIGNALS:
            self._handle(number, self._on_end)
        self._handle(signal.SIGWINCH, self._on_resize)
        self._handle(signal.SIGTSTP, self._on_stop)
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._restore()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
            signal.set_wakeup_fd(self._wakeup_before)
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _handle(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        self._handlers[number] = signal.signal(number, handler)

    def _on_end(self, number: int, _frame: FrameType | None) -> None:
        self.ended_by = number

    def _on_resize(self, _number: int, _frame: FrameType | None) -> None:
        self.resized = True

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its terminal back until the program continues."""
        self._restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        # Continued by the shell's `fg`.
        signal.signal(signal.SIGTSTP, self._on_stop)
        self._start()
        self.resized = True

    def _start(self) -> None:
        mode = termios.tcgetattr(self._in)
        mode[_LFLAG] &= ~(termios.ECHO | termios.ICANON)
        mode[_CC][termios.VMIN], mode[_CC][termios.VTIME] = 1, 0
        # Sent before, so that no key is echoed into the new screen.
        termios.tcsetattr(self._in, termios.TCSADRAIN, mode)
        self._shown = []
        self._write(_ENTER)

    def _restore(self) -> None:
        try:
            self._write(_LEAVE)
        except OSError:
            pass  # the terminal was closed
        try:
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._saved)
        except termios.error:
            pass

    def drain_wakeups(self) -> None:
        try:
            while os.read(self._wake_read, 512):
                pass
        except BlockingIOError:
            pass

    def size(self) -> tuple[int, int]:
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:
            columns, lines = 80, 24
        return columns or 80, lines or 24

    def draw(self, lines: Sequence[Text]) -> None:
        """Writes the lines that have changed since the last frame."""
        if self.resized:
            self.resized, self._shown = False, []
            self._write("\x1b[2J")
        drawn = [self._ansi(line) for line in lines]
        before = self._shown + [""] * (len(drawn) - len(self._shown))
        changed = [
            # Erased before: after a full line the cursor is still on its last cell.
            f"\x1b[{number};1H\x1b[0m\x1b[K{line}\x1b[0m"
            for number, (line, old) in enumerate(zip(drawn, before, strict=False), 1)
            if line != old
        ]
        self._shown = drawn
        self._write("".join(changed))

    def _ansi(self, line: Text) -> str:
        drawn = ansi(line, no_color=self._no_color)
        return drawn if self._unicode else ascii_text(drawn)

    def _write(self, text: str) -> None:
        """Writes everything; the terminal may be slow and not take it at once."""
        encoding = sys.stdout.encoding or "utf-8"
        data = text.encode(encoding, "replace")
        while data:
            data = data[os.write(self._out, data) :]
