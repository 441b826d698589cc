"""A fake API server and a client for each test; checks that no task is left."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from bootbridge.kube.access import BearerToken, ClusterAccess, FileOrInline, TlsClientConfig
from bootbridge.kube.client import KubeClient
from tests.support.fake_api_server import TOKEN, FakeApiServer


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    """Starts a fake API server; at the end no task of the test may be left."""
    before = asyncio.all_tasks()
    async with FakeApiServer(tmp_path) as server:
        yield server
    await until(lambda: not asyncio.all_tasks() - before - {asyncio.current_task()})


def access_to(api: FakeApiServer, token: str = TOKEN, host: str = "127.0.0.1") -> ClusterAccess:
    return ClusterAccess(
        host=host,
        port=api.port,
        server_name=host,
        tls=TlsClientConfig(FileOrInline("ca", data=api.authority.cert_pem)),
        token=BearerToken(FileOrInline("token", data=token.encode())),
    )


@pytest.fixture
async def client(api: FakeApiServer) -> AsyncIterator[KubeClient]:
    client = KubeClient(access_to(api), qps=-1)
    yield client
    await client.aclose()


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Waits for a condition; fails after a timeout."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        await asyncio.sleep(0.005)


class running:
    """Runs a coroutine during a block and cancels it afterwards."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine

    async def __aenter__(self) -> asyncio.Task[None]:
        self._task = asyncio.create_task(self._coroutine)
        return self._task

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._task


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
