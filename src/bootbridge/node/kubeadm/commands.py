"""Runs a program with a time limit and passes on its redacted output line by line.

The program leads a new process group. On timeout or cancellation the group gets SIGTERM, then SIGKILL, and
the leader is reaped before the caller continues. Each line is redacted before it is passed on or kept.
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

# Longer lines are cut: consumers keep them in memory.
LINE_BYTES_MAX: Final = 2048
TAIL_LINES_MAX: Final = 12
GRACE_SECONDS: Final = 5.0
# To read remaining output after the exit; a surviving child may keep the pipe open without limit.
DRAIN_SECONDS: Final = 1.0
READ_BYTES: Final = 65536

OnLine = Callable[[str], None]
_REDACTOR: Final = Redactor()
_KEY_BEGINS: Final = re.compile(rb"-----BEGIN[A-Z ]{0,60} PRIVATE KEY-----")
_KEY_LINE: Final = re.compile(rb"[A-Za-z0-9+/=]*")


class CommandFailed(Transient):
    """The program failed or timed out; the message contains its last lines."""


@dataclass
class _Lines:
    """Splits bytes into lines; cuts lines at LINE_BYTES_MAX."""

    on_line: OnLine
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES_MAX))
    _pending: bytes = b""
    _cut: bool = False
    # Lines are redacted one by one; a line of a key is recognised only by the header before it.
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
            # The end of a line whose beginning was passed on.
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
            self.on_line(text)


async def run_command(argv: Sequence[str], *, seconds: float, on_line: OnLine = lambda line: None) -> None:
    """Raises CommandFailed if the program fails or times out, Fatal if it cannot be started."""
    name = os.path.basename(argv[0])
    lines = _Lines(on_line)
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
        advice = f"add {name} to the machine image or to the components"
        raise Fatal(f"{argv[0]}: {error.strerror or error}", advice=advice) from error
    finally:
        os.close(writer)
    reading = spawn(_read(pipe, lines), f"output of {name}")
    try:
        async with asyncio.timeout(seconds):
            status = await process.wait()
    except TimeoutError:
        raise CommandFailed(_with_output(f"{name}: timed out after {seconds:g} s", lines.tail)) from None
    finally:
        await _terminate(process)
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await reading
        lines.end()
    if status:
        raise CommandFailed(_with_output(f"{name}: exit status {status}", lines.tail))


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


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """Ends the process group if the leader still runs."""
    if process.returncode is not None:
        return
    try:
        _signal(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
        if process.returncode is None:
            _signal(process, signal.SIGKILL)
            # Must have exited before the caller continues, or both would change the machine.
            await process.wait()
    except asyncio.CancelledError:
        # Cancelled during the grace period.
        _signal(process, signal.SIGKILL)
        raise


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _with_output(problem: str, tail: Sequence[str]) -> str:
    return f"{problem}: {' | '.join(tail)}" if tail else problem
