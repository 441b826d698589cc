"""Runs another program to its end: its lines as they come, within a time limit, with nothing left behind.

The program leads a process group of its own. When time is up or the caller is cancelled, the whole group
is asked to end, then made to, and its leader is reaped before the caller goes on. No secret leaves here:
each line is cleaned before anybody hears or keeps it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from typing import Final

from bootbridge.common.failures import Fatal, Transient
from bootbridge.common.redaction import Redactor
from bootbridge.runtime.tasks import spawn

# A longer line is cut: no message of a person's is longer, and some consumer holds it in memory.
LINE_BYTES_MAX: Final = 2048
TAIL_LINES_MAX: Final = 12
GRACE_SECONDS: Final = 5.0
# For what was written before the end and not read yet; a child that lives on may hold the pipe open for ever.
DRAIN_SECONDS: Final = 1.0
READ_BYTES: Final = 65536

Line = Callable[[str], None]
_REDACTOR: Final = Redactor()
_KEY_BEGINS: Final = re.compile(rb"-----BEGIN[A-Z ]{0,60} PRIVATE KEY-----")
_KEY_LINE: Final = re.compile(rb"[A-Za-z0-9+/=]*")


class CommandFailed(Transient):
    """The program ended badly, or not in time; its last lines are in the text."""


@dataclass
class _Lines:
    """Bytes → lines; what exceeds a line's limit is dropped up to its end."""

    tell: Line
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES_MAX))
    _pending: bytes = b""
    _cut: bool = False
    # Lines are cleaned one by one, and those of a key show only by what came before them that they are.
    _in_key: bool = False

    def feed(self, data: bytes) -> None:
        *whole, rest = (self._pending + data).split(b"\n")
        for line in whole:
            self._line(line)
        if len(rest) > LINE_BYTES_MAX:
            self._line(rest)
            self._cut, rest = True, b""
        self._pending = rest

    def end(self) -> None:
        if self._pending:
            self._line(self._pending)
            self._pending = b""

    def _line(self, line: bytes) -> None:
        if self._cut:
            # The end of a line whose beginning was told.
            self._cut = False
            return
        if self._in_key and _KEY_LINE.fullmatch(line.strip()):
            return
        self._in_key = _KEY_BEGINS.search(line) is not None
        text = _REDACTOR.clean(line[:LINE_BYTES_MAX]).decode(errors="replace").rstrip()
        if len(line) > LINE_BYTES_MAX:
            text += " …"
        if text:
            self.tail.append(text)
            self.tell(text)


async def run_command(argv: Sequence[str], *, seconds: float, tell: Line = lambda line: None) -> None:
    """Run it; `tell` hears each line that it says. CommandFailed if it does not end well in time."""
    name = os.path.basename(argv[0])
    lines = _Lines(tell)
    reader, writer = os.pipe()
    pipe = os.fdopen(reader, "rb", 0)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            start_new_session=True,
        )
    except OSError as error:
        pipe.close()
        advice = f"bring {name} with the machine's image, or name it among the components"
        raise Fatal(f"cannot run {argv[0]}: {error.strerror or error}", advice=advice) from error
    finally:
        os.close(writer)
    reading = spawn(_read(pipe, lines), f"output of {name}")
    try:
        async with asyncio.timeout(seconds):
            status = await process.wait()
    except TimeoutError:
        raise CommandFailed(_said(f"{name} was not done within {seconds:g} s", lines.tail)) from None
    finally:
        await _end(process)
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await reading
        lines.end()
    if status:
        raise CommandFailed(_said(f"{name} ended with status {status}", lines.tail))


async def _read(pipe: FileIO, lines: _Lines) -> None:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), pipe
    )
    try:
        while data := await stream.read(READ_BYTES):
            lines.feed(data)
    finally:
        transport.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """A program that still runs is ended with all that it started."""
    if process.returncode is not None:
        return
    try:
        _signal(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
        if process.returncode is None:
            _signal(process, signal.SIGKILL)
            # Nothing withstands it, and whoever went on before it has ended would run beside it.
            await process.wait()
    except asyncio.CancelledError:
        # Somebody insists: no grace any more.
        _signal(process, signal.SIGKILL)
        raise


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _said(what: str, tail: Sequence[str]) -> str:
    return f"{what}: {' | '.join(tail)}" if tail else what
