"""Waiting for the API server: until /readyz succeeds or the time limit passes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bootbridge.common.failures import Transient
from bootbridge.node.kubeadm import api_server
from bootbridge.node.kubeadm.api_server import ApiServerNotReady, wait_until_ready
from tests.support.fake_clock import pass_time

Answers = Callable[[int], bytes]
READY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
STARTING = b"HTTP/1.1 500 no\r\nContent-Length: 8\r\nConnection: close\r\n\r\netcd: no"


@asynccontextmanager
async def api(answers: Answers, folder: Path) -> AsyncIterator[tuple[Path, list[bytes]]]:
    """An API server over plain HTTP on loopback."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers(len(asked)))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    path = folder / "admin.conf"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(json.dumps(document))
    async with server:
        yield path, asked


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "POLL_SECONDS", 0.01)


async def test_readyz_is_polled_until_it_succeeds(tmp_path: Path) -> None:
    async with api(lambda count: READY if count == 3 else STARTING, tmp_path) as (kubeconfig, asked):
        await wait_until_ready(kubeconfig, seconds=10)
    assert len(asked) == 3
    assert asked[0].startswith(b"GET /readyz ")


async def test_a_timeout_reports_the_last_error(tmp_path: Path) -> None:
    def starting(count: int) -> bytes:
        # Asked for the second time, it has been heard once.
        if count == 2:
            pass_time(600)
        return STARTING

    async with api(starting, tmp_path) as (kubeconfig, _):
        with pytest.raises(ApiServerNotReady, match="not ready after 600 s: 500"):
            await wait_until_ready(kubeconfig, seconds=600)
    assert issubclass(ApiServerNotReady, Transient)


async def test_a_silent_api_server_times_out(tmp_path: Path) -> None:
    async with api(lambda count: READY, tmp_path) as (kubeconfig, _):
        pass
    with pytest.raises(ApiServerNotReady, match="not ready"):
        await wait_until_ready(kubeconfig, seconds=0.1)
