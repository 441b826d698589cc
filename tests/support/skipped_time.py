"""Time that passes at once: for a limit that is to be reached while real programs and sockets are at work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest


@dataclass
class SkippedTime:
    """The running loop's clock, which a test may set forward; it goes on by itself, too."""

    monkeypatch: pytest.MonkeyPatch

    def skip(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        time = loop.time
        self.monkeypatch.setattr(loop, "time", lambda: time() + seconds)
