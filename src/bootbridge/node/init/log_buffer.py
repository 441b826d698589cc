"""The last log lines of this process, sent to the client of a failed init, with secrets redacted.

Collectors add other logs, such as the kubelet's. Reading does not consume the buffer.
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

# Beyond this the oldest lines are dropped.
LINES_BYTES_MAX: Final = 512 * 1024
LINE_CHARACTERS_MAX: Final = 4096
# Of one collector; the end of its log is kept, since it contains the failure.
COLLECTED_BYTES_MAX: Final = 512 * 1024
CHUNK_BYTES: Final = 16 * 1024

Collector = Callable[[], Awaitable[bytes]]


class LogBuffer(logging.Handler):
    """A ring buffer of lines; add it to the root logger to capture the log of this process."""

    def __init__(self, collectors: dict[str, Collector] | None = None) -> None:
        super().__init__()
        self.setFormatter(TextFormatter("node"))
        self._collectors = collectors or {}
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._redactor = Redactor()
        self._secrets: set[bytes] = set()

    def redact(self, *secrets: bytes) -> None:
        """Redacts these from what `read` yields: as they are, in hex and in base64."""
        for secret in filter(None, secrets):
            self._redactor.learn(secret)
            self._secrets |= {secret, secret.hex().encode(), base64.b64encode(secret)}
            self._secrets |= {base64.urlsafe_b64encode(secret), base64.b64encode(secret).rstrip(b"=")}

    def emit(self, record: logging.LogRecord) -> None:
        self.append(self.format(record))

    def append(self, line: str) -> None:
        kept = line[:LINE_CHARACTERS_MAX].encode(errors="backslashreplace") + b"\n"
        self._lines.append(kept)
        self._bytes += len(kept)
        while self._bytes > LINES_BYTES_MAX:
            self._bytes -= len(self._lines.popleft())

    async def read(self) -> AsyncIterator[bytes]:
        """Yields the lines of this process, then the log of each collector under its name, in chunks."""
        parts = [b"".join(self._lines)]
        for name, collect in self._collectors.items():
            parts.append(f"\n--- {name}\n".encode() + await self._collect(collect))
        for text in parts:
            redacted = self._redacted(text)
            for at in range(0, len(redacted), CHUNK_BYTES):
                yield redacted[at : at + CHUNK_BYTES]

    async def _collect(self, collect: Collector) -> bytes:
        try:
            return (await collect())[-COLLECTED_BYTES_MAX:]
        except (BootbridgeError, OSError) as error:
            # One unreadable log must not prevent the others from being sent.
            return f"collecting failed: {error}\n".encode()

    def _redacted(self, text: bytes) -> bytes:
        for secret in self._secrets:
            text = text.replace(secret, b"[redacted]")
        return self._redactor.clean(text)
