"""Copies bytes between a local connection and one through the tunnel, in both directions at once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from bootbridge.frontend_client.tunnel_stream import ConnectionCutError, TunnelStream
from bootbridge.runtime import tasks

CHUNK_BYTES: Final = 64 * 1024
# How long one direction may be silent after the other has ended.
LINGER_SECONDS: Final = 10.0
# The same before the destination is sent the end: the original server then closes both directions, and the
# answer is lost. Our own does not.
LINGER_BEFORE_END_SECONDS: Final = 1.0

T = TypeVar("T")


class LocalEnd(Protocol):
    async def read(self) -> bytes:
        """Returns some bytes; none at the end."""

    async def write(self, data: bytes) -> None: ...

    def end(self) -> None:
        """The destination has sent its last byte."""


class SocketEnd:
    """A TCP connection of a local client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(CHUNK_BYTES)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        if not self._writer.is_closing():
            self._writer.write_eof()


class StandardStreams:
    """stdin and stdout. They may be files, which no event loop can watch, so threads read and write them."""

    async def read(self) -> bytes:
        return await _in_daemon_thread(lambda: os.read(0, CHUNK_BYTES))

    async def write(self, data: bytes) -> None:
        await _in_daemon_thread(lambda: _write_all(1, data))

    def end(self) -> None:
        """The process ends soon, and stdout with it."""


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


async def _in_daemon_thread(work: Callable[[], T]) -> T:
    """asyncio's own threads would keep the process from ending while stdin has no input."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(settle: Callable[[T], None] | Callable[[BaseException], None], value: object) -> None:
        if not done.done():
            settle(value)  # type: ignore[arg-type]

    def run() -> None:
        settle: Callable[..., None]
        value: object
        try:
            settle, value = done.set_result, work()
        except OSError as error:
            settle, value = done.set_exception, error
        try:
            loop.call_soon_threadsafe(finish, settle, value)
        except RuntimeError:
            pass  # the loop has ended before

    threading.Thread(target=run, daemon=True, name="standard stream").start()
    return await done


class Relay:
    """Copies until both directions have ended. Closes the tunnel's connection; the local one stays open.

    ``linger_seconds``: how long the destination may be silent after the end of the local data. Then it is
    sent that end; a frontend without half-close closes the connection instead.
    """

    def __init__(self, local: LocalEnd, tunnel: TunnelStream, linger_seconds: float) -> None:
        self._local = local
        self._tunnel = tunnel
        self._linger_seconds = linger_seconds
        self._moved = 0

    async def run(self, *, until_answered: bool = False) -> None:
        """Raises ConnectionCutError if the tunnel's connection is cut, OSError if the local one is.

        ``until_answered``: stops when the destination has sent its last byte, although we could send more.
        """
        upload = tasks.spawn(self._upload(), "relay: upload", awaited=True)
        download = tasks.spawn(self._download(), "relay: download", awaited=True)
        try:
            await asyncio.wait({upload, download}, return_when=asyncio.FIRST_COMPLETED)
            if not download.done():
                upload.result()
                await self._rest(download, self._linger_seconds)
                if not download.done() and self._tunnel.end_upload():
                    await self._rest(download, None)
            elif not until_answered:
                download.result()
                await self._rest(upload, LINGER_SECONDS)
            if download.done():
                download.result()
        finally:
            for task in (upload, download):
                task.cancel()
            await asyncio.wait({upload, download})
            await self._tunnel.close()

    async def _upload(self) -> None:
        try:
            while data := await self._local.read():
                await self._tunnel.write(data)
                self._moved += 1
        except ConnectionCutError:
            pass  # the download has the same reason, and may have bytes left

    async def _download(self) -> None:
        while data := await self._tunnel.read():
            await self._local.write(data)
            self._moved += 1
        self._local.end()

    async def _rest(self, task: asyncio.Task[None], silent_seconds: float | None) -> None:
        """Waits for a direction, or until it has been silent for that long."""
        while not task.done():
            moved = self._moved
            await asyncio.wait({task}, timeout=silent_seconds)
            if moved == self._moved:
                return
