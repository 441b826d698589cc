"""Draws captured terminal output as SVG: text stays text, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
FONT_SIZE = 14
CELL_WIDTH, CELL_HEIGHT = 8.4, 20
PADDING, BAR = 18, 34
FOREGROUND, BACKGROUND, BAR_COLOUR, BORDER = "#d6dce5", "#12161d", "#1b212b", "#39424f"
FAINT = "#8f9bab"
# The 16 colours of a terminal, each with a contrast above 4.5 on the background.
COLOURS = (
    ("#6e7a8a", "#ff7b72", "#56d364", "#e3b341", "#79b8ff", "#d2a8ff", "#56d4dd", "#d6dce5"),
    ("#8f9bab", "#ffa198", "#7ee787", "#f2cc60", "#a5d6ff", "#e2c5ff", "#8ae9f0", "#ffffff"),
)
_SEQUENCE = re.compile(
    r"\x1b\[([0-9;:]*)m|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()].|\x1b\[[0-9;?]*[A-Za-z]|[\x0e\x0f]"
)


@dataclass(frozen=True)
class Style:
    colour: str = ""
    background: str = ""
    bold: bool = False
    faint: bool = False
    italic: bool = False
    underline: bool = False
    reverse: bool = False


@dataclass(frozen=True)
class Run:
    """Characters of one style, beside each other."""

    column: int
    text: str
    style: Style


def render(screen: str, *, title: str, columns: int) -> str:
    """Returns the SVG of a window of this width that shows all lines."""
    lines = parse(screen)
    width = round(columns * CELL_WIDTH + 2 * PADDING)
    height = round(BAR + len(lines) * CELL_HEIGHT + 2 * PADDING - 6)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(title, {chr(34): "&quot;"})}" xml:space="preserve">',
        f"<style>text{{font:{FONT_SIZE}px {FONT};fill:{FOREGROUND};white-space:pre}}"
        ".b{font-weight:700}.i{font-style:italic}.u{text-decoration:underline}</style>",
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="9" fill="{BACKGROUND}"'
        f' stroke="{BORDER}"/>',
        f'<path d="M1 {BAR}V10a9 9 0 0 1 9-9h{width - 20}a9 9 0 0 1 9 9v{BAR - 10}z" fill="{BAR_COLOUR}"/>',
        *(f'<circle cx="{20 + 18 * i}" cy="17" r="5.5" fill="{BORDER}"/>' for i in range(3)),
        f'<text x="{width / 2:g}" y="22" text-anchor="middle" style="fill:{FAINT};font-size:13px">'
        f"{escape(title)}</text>",
    ]
    for number, line in enumerate(lines):
        parts += _draw(line, BAR + PADDING + number * CELL_HEIGHT)
    return "\n".join([*parts, "</svg>", ""])


def _draw(line: list[Run], top: float) -> Iterator[str]:
    for run in line:
        x, width = PADDING + run.column * CELL_WIDTH, _cells(run.text) * CELL_WIDTH
        colour, background = run.style.colour, run.style.background
        if run.style.reverse:
            colour, background = background or BACKGROUND, colour or FOREGROUND
        if background:
            area = f'width="{width:g}" height="{CELL_HEIGHT}"'
            yield f'<rect x="{x:g}" y="{top:g}" {area} fill="{background}"/>'
        if not run.text.strip():
            continue
        names = {"b": run.style.bold, "i": run.style.italic, "u": run.style.underline}
        classes = " ".join(name for name, on in names.items() if on)
        colour = colour or (FAINT if run.style.faint else "")
        attributes = (f' class="{classes}"' if classes else "") + (
            f' style="fill:{colour}"' if colour else ""
        )
        faint = ' opacity=".7"' if run.style.faint and run.style.colour else ""
        # The length keeps columns aligned, whatever the width of the reader's font.
        yield (
            f'<text x="{x:g}" y="{top + 14.5:g}" textLength="{width:g}" lengthAdjust="spacingAndGlyphs"'
            f"{attributes}{faint}>{escape(run.text)}</text>"
        )


def parse(screen: str) -> list[list[Run]]:
    """Returns the runs of each line."""
    style = Style()
    lines = []
    for line in screen.splitlines():
        runs: list[Run] = []
        column = at = 0
        for found in [*_SEQUENCE.finditer(line), None]:
            text = line[at : found.start() if found else len(line)]
            for piece in re.split(r"( {3,})", text):  # a gap is a gap, not part of a run
                if piece and (piece.strip() or style.background or style.reverse or style.underline):
                    runs.append(Run(column, piece, style))
                column += _cells(piece)
            if found is None:
                break
            at = found.end()
            if found[1] is not None:
                style = _apply(style, found[1])
        lines.append(runs)
    return lines


def _cells(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide


def _apply(style: Style, sequence: str) -> Style:
    codes = [int(code or 0) for code in re.split("[;:]", sequence)]
    while codes:
        code = codes.pop(0)
        if code in (38, 48):
            colour = _extended(codes)
            style = replace(style, **{"colour" if code == 38 else "background": colour})
        else:
            style = _apply_one(style, code)
    return style


def _apply_one(style: Style, code: int) -> Style:
    match code:
        case 0:
            return Style()
        case 1:
            return replace(style, bold=True)
        case 2:
            return replace(style, faint=True)
        case 22:
            return replace(style, bold=False, faint=False)
        case 3 | 23:
            return replace(style, italic=code == 3)
        case 4 | 24:
            return replace(style, underline=code == 4)
        case 7 | 27:
            return replace(style, reverse=code == 7)
        case 39:
            return replace(style, colour="")
        case 49:
            return replace(style, background="")
    for first, bright, name in (
        (30, 0, "colour"),
        (90, 1, "colour"),
        (40, 0, "background"),
        (100, 1, "background"),
    ):
        if first <= code < first + 8:
            return replace(style, **{name: COLOURS[bright][code - first]})
    return style


def _extended(codes: list[int]) -> str:
    """Takes the codes of a colour from the 256, or of red, green and blue."""
    kind = codes.pop(0) if codes else 0
    if kind == 2:
        red, green, blue = codes[:3]
        del codes[:3]
        return f"#{red:02x}{green:02x}{blue:02x}"
    number = codes.pop(0) if codes else 7
    if number < 16:
        return COLOURS[number // 8][number % 8]
    if number >= 232:
        return f"#{(8 + 10 * (number - 232)):02x}" + f"{(8 + 10 * (number - 232)):02x}" * 2
    levels = (0, 95, 135, 175, 215, 255)
    number -= 16
    return "#" + "".join(f"{levels[number // step % 6]:02x}" for step in (36, 6, 1))
