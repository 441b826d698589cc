"""A connection through the tunnel on asyncio's streams."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from bootbridge.frontend_client.call import DialError, FrontendMode, ProtocolMismatchError, TunnelCall
from bootbridge.frontend_client.frontend import (
    READ_BYTES,
    FrontendAddress,
    FrontendConnection,
    FrontendUnreachable,
)
from bootbridge.runtime import tasks
from bootbridge.runtime.tls_failure import tls_failure

# How long the rest of an error answer may take, if its length is not known.
REASON_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 1.0
# A gRPC server closes a CONNECT request silently; an HTTP CONNECT server logs an HTTP/2 preface as refused.
_GUESSES: Final = (FrontendMode.HTTP_CONNECT, FrontendMode.GRPC)


class ConnectionCutError(Exception):
    """An established connection ended out of order; the text is the reason."""


async def open_tunnel(frontend: FrontendAddress, address: str, seconds: float) -> TunnelStream:
    """Dials `address` (HOST:PORT); raises FrontendUnreachable or DialError. Sets the frontend's mode."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    connection = await _connect(frontend, seconds)
    guesses = (connection.mode,) if connection.mode else _GUESSES
    for mode in guesses:
        stream = TunnelStream(connection, frontend.new_call(mode, address))
        try:
            await stream.wait_connected(ends_at - loop.time(), seconds)
        except BaseException as error:
            await stream.close()
            if isinstance(error, DialError) and error.status:
                frontend.mode = mode  # a refusal in HTTP shows the mode, too
            if not isinstance(error, ProtocolMismatchError) or mode is guesses[-1]:
                raise
            connection = await _connect(frontend, ends_at - loop.time())
        else:
            frontend.mode = mode
            return stream
    raise AssertionError("a last guess returns or raises")


async def _connect(frontend: FrontendAddress, seconds: float) -> FrontendConnection:
    try:
        async with asyncio.timeout(seconds):
            return await frontend.connect()
    except TimeoutError:
        text = f"frontend of the server: connection timed out after {seconds:.3g}s"
        raise FrontendUnreachable(text, subject=str(frontend)) from None


class TunnelStream:
    """Bytes to and from a destination. A task reads the socket: neither direction waits for the other.

    Memory is bounded: unread bytes by the call, unsent ones because `write` waits.
    """

    def __init__(self, connection: FrontendConnection, call: TunnelCall) -> None:
        self._reader = connection.reader
        self._writer = connection.writer
        self._call = call
        self._changed = asyncio.Event()
        self._failure: DialError | None = None
        self._flush()
        self._reading = tasks.spawn(self._read_socket(), "tunnel: reader")

    @property
    def half_closes(self) -> bool:
        """Whether the destination can be sent the end of our data, and still answer."""
        return self._call.half_closes and self._writer.can_write_eof()

    async def wait_connected(self, seconds: float, shown: float) -> None:
        """Waits until the destination has accepted; raises DialError."""
        call = self._call
        try:
            async with asyncio.timeout(seconds):
                while not call.connected and not call.refused and self._failure is None:
                    await self._change()
        except TimeoutError:
            raise DialError(f"timed out after {shown:.3g}s: no answer from the server") from None
        try:
            async with asyncio.timeout(REASON_SECONDS):
                while call.refused and self._failure is None:
                    await self._change()
        except TimeoutError:
            call.receive_end()  # raises, with what has arrived of the reason
        if self._failure is not None:
            raise self._failure

    async def read(self) -> bytes:
        """Returns some bytes; none at the orderly end. Raises ConnectionCutError."""
        while True:
            if data := self._call.take_received():
                self._flush()
                self._notify()
                return data
            if self._call.ended:
                if self._call.error:
                    raise ConnectionCutError(self._call.error)
                return b""
            await self._change()

    async def write(self, data: bytes) -> None:
        """Returns when the next bytes may be written; raises ConnectionCutError."""
        while not self._call.ready:
            if self._call.ended:
                raise ConnectionCutError(self._call.error or "the destination closed the connection")
            await self._change()
        self._call.send(data)
        self._flush()
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionCutError(_reason(error)) from error

    def end_upload(self) -> bool:
        """Sends the end of our data; False if the protocol has no half-close."""
        if not self.half_closes:
            return False
        if not self._call.ended and not self._writer.is_closing():
            self._writer.write_eof()
        return True

    async def close(self) -> None:
        """Closes the connection, in order if everything was written."""
        self._call.end()
        self._flush()
        self._reading.cancel()
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    # --- the socket

    async def _read_socket(self) -> None:
        call = self._call
        try:
            while not call.ended:
                if not call.wants_input:
                    await self._change()
                    continue
                data = await self._reader.read(READ_BYTES)
                call.receive(data) if data else call.receive_end()
                self._flush()
                self._notify()
        except DialError as error:
            self._failure = error
        except OSError as error:
            if call.connected:
                call.ended, call.error = True, _reason(error)
            else:
                self._failure = DialError(_reason(error))
        finally:
            self._notify()

    def _flush(self) -> None:
        if (output := self._call.take_output()) and not self._writer.is_closing():
            self._writer.write(output)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self) -> None:
        await self._changed.wait()


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return tls_failure(error)
    return f"connection to the server lost: {error.strerror or type(error).__name__}".lower()
