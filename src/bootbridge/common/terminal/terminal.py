"""Writes records, tables and summaries to a terminal, a pipe or a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TextIO

from bootbridge.common.terminal import transient
from bootbridge.common.terminal.characters import escape_control_characters, for_output, shows_unicode
from bootbridge.common.terminal.styles import STYLES, Mark, Styled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["Cell", "Mark", "Styled", "Terminal"]

Cell = str | Styled | Mark

GAP = 2
# The last cell of a record moves below the others if it has less room beside them, or needs more lines there.
LAST_CELL_COLUMNS_MIN = 20
LAST_CELL_LINES_MAX = 3
CONTINUATION_INDENT = 4


class Terminal:
    """Writes lines to a terminal, pipe or file, or nowhere if `out` is None.

    If the reader has closed the pipe (`| head`) it calls `on_closed`, or raises BrokenPipeError, once, and
    writes nothing from then on.
    """

    def __init__(
        self,
        out: TextIO | None,
        *,
        environment: Mapping[str, str] = os.environ,
        on_closed: Callable[[], None] | None = None,
    ) -> None:
        self._out = out
        self._on_closed = on_closed
        self._environment = environment
        self.live = out is not None and out.isatty() and environment.get("TERM") != "dumb"
        self.colour = self.live and not environment.get("NO_COLOR")
        self.unicode = self.live and shows_unicode(out, environment)
        self.closed = False  # the reader closed the pipe before the end

    @property
    def columns(self) -> int:
        """The width of the terminal; 0 means unlimited, because the output is not a terminal."""
        if not self.live or self._out is None:
            return 0
        try:
            # Some terminals report 0 columns.
            return max(os.get_terminal_size(self._out.fileno()).columns, 0) or 80
        except (OSError, ValueError):
            return 80

    # --- lines

    def line(self, *cells: Cell, indent: int = 0) -> None:
        """Writes one line, its cells joined by blanks; on a terminal it wraps at words."""
        self._write_lines(self._wrapped(self._joined(cells), indent, indent))

    def verbatim(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """Writes one line that is never wrapped: a command to copy, a line of a diagram or a log."""
        line = self._text(Styled(text, style))
        line.pad_left(indent)
        self._write_lines([line])

    def transient(self, *cells: Cell) -> None:
        """Shows a line that the next one overwrites; only on a terminal."""
        if not self.live:
            return
        line = self._joined(cells)
        line.truncate(self.columns - 1, overflow="ellipsis" if self.unicode else "crop")
        with transient.LOCK:
            transient.erase()
            self._write(self._rendered(line))
            transient.drawn(lambda: self._write("\r\x1b[K"))

    # --- records

    def record(self, cells: Sequence[Cell], widths: Sequence[int] = (), *, indent: int = 0) -> None:
        """Writes one record: cells in columns of at least these widths, the last cell wrapped."""
        marks = Mark.width(self.unicode)
        texts = [self._text(cell) for cell in cells]
        known = [*widths, *([0] * len(cells))]
        full = [
            max(width, text.cell_len, marks if isinstance(cell, Mark) else 0)
            for cell, text, width in zip(cells[:-1], texts, known, strict=False)
        ]
        left = texts[0].blank_copy(" " * indent)
        for cell, text, width in zip(cells, texts, full, strict=False):
            left.append_text(text)
            left.append(" " * (width - text.cell_len + (1 if isinstance(cell, Mark) else GAP)))
        self._write_lines(self._beside(left, texts[-1], indent))

    def table(
        self,
        rows: Iterable[Sequence[Cell]],
        *,
        head: Sequence[str] = (),
        indent: int = 0,
        right: Sequence[int] = (),
    ) -> None:
        """Writes rows in aligned columns; `right` lists the columns of figures, aligned to the right.

        The names in `head` are left out where the columns do not fit.
        """
        from rich.cells import cell_len

        table: list[Sequence[Cell]] = [tuple(row) for row in rows]
        if head:
            table.insert(0, tuple(Styled(text, "strong") for text in head))
        if not table:
            return
        columns = list(zip(*([cell_len(self._plain(cell)) for cell in row] for row in table), strict=True))
        widths = [max(column) for column in columns]
        if head and self.columns and indent + sum(widths[:-1]) + GAP * len(widths) > self.columns:
            del table[0]  # cells are not below each other: the names would mislead
        for row in table:
            cells = list(row)
            for place in right:
                cells[place] = self._right_aligned(cells[place], widths[place])
            self.record(cells, widths[:-1], indent=indent)

    def facts(self, facts: Mapping[str, Cell], *, indent: int = 0) -> None:
        """Writes names and values, one pair per line."""
        self.table(((Styled(name, "dim"), value) for name, value in facts.items()), indent=indent)

    # --- the end of a verb

    def summary(
        self,
        mark: Mark,
        sentence: str,
        *,
        details: Iterable[str] = (),
        next_steps: Sequence[tuple[str, str]] = (),
        apart: bool = True,
    ) -> None:
        """Writes the closing summary: the result, details such as a fix, and the commands to type next.

        `next_steps` are pairs of a command and what it does; `apart`: a blank line comes first.
        """
        if apart:
            self.line()
        lead = [] if mark is Mark.NONE else [mark]
        self.record([*lead, Styled(sentence, "strong")])
        for detail in details:
            self.record([*([Mark.NONE] if lead else []), detail])
        if next_steps:
            self.next_steps(next_steps)

    def next_steps(self, steps: Sequence[tuple[str, str]]) -> None:
        """Writes commands to type next, each with what it does. Commands are not wrapped."""
        self.line()
        self.line(Styled("Next:", "strong"))
        width = max(len(command) for command, _ in steps)
        together = not self.columns or all(
            CONTINUATION_INDENT + width + GAP + len(why) <= self.columns for _, why in steps
        )
        for command, why in steps:
            if together:
                self.record([Styled(command, "command"), Styled(why, "dim")], [width], indent=2)
            else:
                self.verbatim(command, "command", indent=2)
                self.line(Styled(why, "dim"), indent=6)

    # --- layout

    def _beside(self, left: Text, last: Text, indent: int) -> list[Text]:
        """Returns the lines of a record: the last cell beside the others, or below them."""
        from rich.cells import cell_len

        columns, used = self.columns, left.cell_len
        if not columns or used + last.cell_len <= columns:
            left.append_text(last)
            return [left]
        below = indent + CONTINUATION_INDENT
        longest = max((cell_len(word) for word in last.plain.split()), default=0)
        # A path or a command is cut only if it does not fit in a line of its own.
        whole = longest <= columns - used or longest > columns - below
        if columns - used >= LAST_CELL_COLUMNS_MIN and whole:
            first, *more = self._split(last, columns - used)
            if len(more) < LAST_CELL_LINES_MAX:
                left.append_text(first)
                return [left, *self._indented(more, used)]
        left.rstrip()
        if left.cell_len > columns:
            left.append(" " * GAP)
            left.append_text(last)
            return self._wrapped(left, 0, below)
        return [
            *self._wrapped(left, 0, below),
            *(self._indented(self._split(last, columns - below), below) if last else ()),
        ]

    def _wrapped(self, text: Text, indent: int, below: int) -> list[Text]:
        """Returns the lines of a text, the first indented by `indent`, the others by `below`."""
        columns = self.columns
        if not columns or indent + text.cell_len <= columns:
            return self._indented([text], indent)
        first, *_ = self._split(text, columns - indent)
        rest = text[len(first) :]
        lines = self._indented([first], indent)
        rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
        return [*lines, *self._indented(self._split(rest, columns - below), below)] if rest else lines

    def _split(self, text: Text, columns: int) -> list[Text]:
        """Cuts a text at words into lines of at most `columns`; longer words are cut."""
        lines = text.wrap(self._console, max(columns, 8), overflow="fold")
        for line in lines:
            line.rstrip()
        return list(lines)

    @staticmethod
    def _indented(lines: Iterable[Text], columns: int) -> list[Text]:
        indented = []
        for line in lines:
            copy = line.copy()
            copy.pad_left(columns)
            indented.append(copy)
        return indented

    # --- texts

    def _plain(self, cell: Cell) -> str:
        if isinstance(cell, Mark):
            return cell.sign(self.unicode)
        text = escape_control_characters(cell.text if isinstance(cell, Styled) else cell)
        return for_output(text, self._out, self._environment)

    def _text(self, cell: Cell) -> Text:
        from rich.text import Text

        text = Text(self._plain(cell), end="")
        text.stylize(STYLES["" if isinstance(cell, str) else cell.style])
        return text

    def _joined(self, cells: Sequence[Cell]) -> Text:
        from rich.text import Text

        return Text(" ", end="").join(self._text(cell) for cell in cells)

    def _right_aligned(self, cell: Cell, width: int) -> Cell:
        text = self._plain(cell)
        padded = " " * (width - len(text)) + text
        return padded if isinstance(cell, str) else Styled(padded, cell.style)

    # --- output

    @cached_property
    def _console(self) -> Console:
        """For rich's measures and styles; nothing is printed with it."""
        from rich.console import Console

        return Console(width=80, color_system=None, markup=False, highlight=False, emoji=False)

    def _rendered(self, text: Text) -> str:
        text.rstrip()
        if not self.colour:
            return text.plain
        from rich.color import ColorSystem

        return "".join(
            segment.style.render(segment.text, color_system=ColorSystem.STANDARD)
            if segment.style
            else segment.text
            for segment in text.render(self._console)
        )

    def _write_lines(self, lines: Iterable[Text]) -> None:
        with transient.LOCK:
            transient.erase()
            self._write("".join(f"{self._rendered(line)}\n" for line in lines))

    def _write(self, text: str) -> None:
        if self._out is None or not text:
            return
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        try:
            self._out.write(text.encode(encoding, "replace").decode(encoding))
            self._out.flush()
        except OSError:
            self._out, self.live, self.closed = None, False, True
            if self._on_closed is None:
                raise BrokenPipeError from None
            self._on_closed()
