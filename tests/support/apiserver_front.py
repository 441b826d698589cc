"""Run by the fake kubelet as kube-apiserver: a port that forwards to an API server which outlives it.

    python apiserver_front.py --secure-port=PORT --backend=PORT [any other flag of a kube-apiserver]

It refuses to start on an egress configuration that is not there, as a kube-apiserver does.
"""

from __future__ import annotations

import asyncio
import os
import sys

CONFIG = "--egress-selector-config-file="


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def main(flags: dict[str, str]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", int(flags["--backend"]))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", int(flags["--secure-port"]))
    await server.serve_forever()


if __name__ == "__main__":
    for word in sys.argv[1:]:
        if word.startswith(CONFIG) and not os.path.exists(word.removeprefix(CONFIG)):
            sys.exit(f"no such file: {word}")
    asyncio.run(main(dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)))
