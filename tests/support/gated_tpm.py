"""A TPM behind a gate that counts commands and holds the first quote back until a test opens it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bootbridge.trust.tpm.commands import HEADER_BYTES, CommandCode
from tests.support.swtpm import Swtpm


class GatedTpm:
    def __init__(self, chip: Swtpm) -> None:
        self._port = int(chip.address.rpartition(":")[2])
        self.address = ""
        self.commands: Counter[int] = Counter()
        self.quoting = asyncio.Event()  # the first quote has arrived
        self.open = asyncio.Event()

    @property
    def quotes(self) -> int:
        return self.commands[CommandCode.QUOTE]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"tcp:127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            self.open.set()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chip, to_chip = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while True:
                command = await _message(reader)
                code = int.from_bytes(command[6:HEADER_BYTES], "big")
                self.commands[code] += 1
                if code == CommandCode.QUOTE:
                    self.quoting.set()
                    await self.open.wait()
                to_chip.write(command)
                writer.write(await _message(chip))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            to_chip.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(HEADER_BYTES)
    return head + await reader.readexactly(int.from_bytes(head[2:6], "big") - HEADER_BYTES)
