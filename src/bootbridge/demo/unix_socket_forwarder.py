"""Forwards a loopback port to the proxy-server's unix socket: curl cannot use a proxy on a unix socket."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable

CHUNK_BYTES = 64 * 1024

ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def forward_to(unix_socket: str) -> ConnectionHandler:
    """Returns a handler that copies the bytes of each connection in both directions."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward_reader, onward_writer = await asyncio.open_unix_connection(unix_socket)
        except OSError as error:
            print(f"{unix_socket}: {error}", file=sys.stderr)
            writer.close()
            return
        await asyncio.gather(_copy(reader, onward_writer), _copy(onward_reader, writer))

    return forward


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def _serve(port: int, unix_socket: str) -> None:
    server = await asyncio.start_server(forward_to(unix_socket), "127.0.0.1", port)
    await server.serve_forever()


def main() -> int:
    """Forwards until it is stopped by a signal."""
    parser = argparse.ArgumentParser(prog="unix-socket-forwarder", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--unix-socket", required=True)
    flags = parser.parse_args()
    asyncio.run(_serve(flags.port, flags.unix_socket))
    return 0


if __name__ == "__main__":
    sys.exit(main())
