"""The agent's search for servers, with attempts that the test decides."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bootbridge.metrics import Registry
from bootbridge.proxy_agent import server_sync
from bootbridge.proxy_agent.options import AgentOptions
from bootbridge.proxy_agent.server_sync import ServerSync, Target
from bootbridge.runtime import event_loop
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.tls_files import TlsFiles
from bootbridge.tunnel.agent_core import AgentCore
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.server_set import SyncOutcome
from tests.support.sim_script import RecordedEvents

PATIENCE = 20.0


def new_sync(*hosts: str) -> tuple[ServerSync, RecordedEvents]:
    """A ServerSync whose rounds last an hour unless it is woken."""
    pump, event_log = Pump(event_loop.running_loop()), RecordedEvents()
    core = AgentCore(
        agent_id="a",
        identifiers="",
        stall_seconds=10,
        timers=pump.timers,
        wall_clock=pump.timers.now,
        metrics=AgentMetrics(Registry()),
        event_log=event_log,
        dialler=None,  # type: ignore[arg-type]
    )
    options = AgentOptions(proxy_server_host=hosts, sync_interval=0.01, sync_interval_cap=3600.0)
    return ServerSync(options, pump, core, TlsFiles.agent_client()), event_log


def run(scenario: Callable[[], object]) -> None:
    async def body() -> int:
        await scenario()  # type: ignore[misc]
        return 0

    assert event_loop.run(body()) == 0


@contextmanager
def searching(search: ServerSync) -> Iterator[None]:
    task = asyncio.ensure_future(search.run())
    try:
        yield
    finally:
        task.cancel()


def test_an_address_that_never_answers_does_not_delay_the_search_for_a_lost_server() -> None:
    """The round with the dead one goes on by itself; the next begins when a server is lost."""

    async def scenario() -> None:
        search, _ = new_sync("192.0.2.1", "192.0.2.2")
        dialled: asyncio.Queue[str] = asyncio.Queue()

        async def attempt(target: Target) -> SyncOutcome:
            search._in_flight.add(target.key)
            dialled.put_nowait(target.host)
            if target.host == "192.0.2.1":
                await asyncio.Event().wait()
            search._in_flight.discard(target.key)
            return SyncOutcome.FAILED

        search._attempt = attempt  # type: ignore[method-assign]
        with searching(search):
            first = {await asyncio.wait_for(dialled.get(), PATIENCE) for _ in range(2)}
            assert first == {"192.0.2.1", "192.0.2.2"}
            search._wake.set()  # as when a server is lost
            assert await asyncio.wait_for(dialled.get(), PATIENCE) == "192.0.2.2"

    run(scenario)


def test_a_name_that_fails_again_after_it_resolved_is_logged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each outage once, and not only the first."""

    async def scenario() -> None:
        search, event_log = new_sync("server.example")
        works = iter((False, False, True, False))

        async def look_up(host: str, port: int) -> list[tuple[object, ...]]:
            if not next(works):
                raise socket.gaierror("no such name")
            return [(0, 0, 0, "", ("192.0.2.1", port))]

        monkeypatch.setattr(server_sync, "look_up", look_up)
        for _ in range(4):
            await search._targets()
        assert [note["target"] for note in event_log.about("server not reached")] == ["server.example"] * 2

    run(scenario)
