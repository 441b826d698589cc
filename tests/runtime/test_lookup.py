"""Looking up names."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from bootbridge.runtime import lookup


def test_a_machine_without_threads_left_fails_a_lookup_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often: each is an ordinary failed lookup, and none counts as one that is under way."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def ask() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            for _ in range(lookup.LOOKUPS_MAX + 1):
                with pytest.raises(socket.gaierror, match="can't start new thread"):
                    await lookup.look_up("localhost", 80)
        assert await lookup.look_up("localhost", 80)

    asyncio.run(ask())
