"""What this process and kubeadm said lately, for a user whose init failed; secrets taken out.

It may be read any number of times. Whoever gets it must have shown the init secret before.
"""

from __future__ import annotations

import base64
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from bootbridge.common.redaction import Redactor
from bootbridge.errors import BootbridgeError
from bootbridge.runtime.logs import TextFormatter

# The newest lines that fit; older ones are forgotten.
LINES_BYTES_MAX: Final = 512 * 1024
LINE_CHARACTERS_MAX: Final = 4096
# What one collector may add, its end: the last lines are those that matter.
COLLECTED_BYTES_MAX: Final = 512 * 1024
CHUNK_BYTES: Final = 16 * 1024

Collector = Callable[[], Awaitable[bytes]]


class LogBuffer(logging.Handler):
    """A ring of lines; add it to the root logger to keep what this process logs."""

    def __init__(self, collectors: dict[str, Collector] | None = None) -> None:
        super().__init__()
        self.setFormatter(TextFormatter("node"))
        self._collectors = collectors or {}
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._redactor = Redactor()
        self._hidden: set[bytes] = set()

    def hide(self, *secrets: bytes) -> None:
        """These must not come out, neither as they are nor in the ways binary is written."""
        for secret in filter(None, secrets):
            self._redactor.learn(secret)
            self._hidden |= {secret, secret.hex().encode(), base64.b64encode(secret)}
            self._hidden |= {base64.urlsafe_b64encode(secret), base64.b64encode(secret).rstrip(b"=")}

    def emit(self, record: logging.LogRecord) -> None:
        self.append(self.format(record))

    def append(self, line: str) -> None:
        kept = line[:LINE_CHARACTERS_MAX].encode(errors="backslashreplace") + b"\n"
        self._lines.append(kept)
        self._bytes += len(kept)
        while self._bytes > LINES_BYTES_MAX:
            self._bytes -= len(self._lines.popleft())

    async def read(self) -> AsyncIterator[bytes]:
        """All of it in pieces: first our own lines, then each collector's under its name."""
        parts = [b"".join(self._lines)]
        for name, collect in self._collectors.items():
            parts.append(f"\n--- {name}\n".encode() + await self._collected(collect))
        for text in parts:
            cleaned = self._cleaned(text)
            for at in range(0, len(cleaned), CHUNK_BYTES):
                yield cleaned[at : at + CHUNK_BYTES]

    async def _collected(self, collect: Collector) -> bytes:
        try:
            return (await collect())[-COLLECTED_BYTES_MAX:]
        except (BootbridgeError, OSError) as error:
            # A log that cannot be had must not cost the others.
            return f"cannot be collected: {error}\n".encode()

    def _cleaned(self, text: bytes) -> bytes:
        for secret in self._hidden:
            text = text.replace(secret, b"[redacted]")
        return self._redactor.clean(text)
