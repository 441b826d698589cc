"""`node run` and `node init` as tasks of one test, with real TLS and evidence on loopback."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from bootbridge.node import run
from bootbridge.node.configuration import read_configuration
from bootbridge.node.init.log_buffer import LogBuffer
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.init.session import InitOptions, InitSession
from bootbridge.node.lock.bootstrap_record import FileRecordStore
from bootbridge.runtime import tasks
from bootbridge.trust.evidence import AttestedPeer
from tests.node.local_instance import LocalInstance

DEADLINE_SECONDS = 30.0


@dataclass
class RecordingReport:
    stages: list[tuple[str, str]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    peer: AttestedPeer | None = None
    success: tuple[bytes, str] | None = None
    failure: tuple[str, str, str] | None = None
    on_stage: asyncio.Event = field(default_factory=asyncio.Event)

    def waiting(self, reason: str) -> None:
        self.reasons.append(reason)

    def connected(self, peer: AttestedPeer | None) -> None:
        self.peer = peer

    def stage(self, event: StageEvent) -> None:
        self.stages.append((event.name, event.state))
        self.on_stage.set()

    def started(self, init_id: str) -> None: ...
    def tick(self) -> None: ...

    def succeeded(self, cluster_id: bytes, kubeconfig: str) -> None:
        self.success = (cluster_id, kubeconfig)

    def failed(self, reason: str, advice: str, log: str) -> None:
        self.failure = (reason, advice, log)


@dataclass
class Node:
    """`bootbridge node run`, as a task."""

    running: asyncio.Task[int]
    stop: asyncio.Event
    log_buffer: LogBuffer

    async def code(self) -> int:
        """Requests a stop and returns the exit code; the process need not linger."""
        self.stop.set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.running


@asynccontextmanager
async def node_run(instance: LocalInstance) -> AsyncIterator[Node]:
    configuration = read_configuration(instance.configuration)
    records, log_buffer, stop = FileRecordStore.open(configuration.settings.run), LogBuffer(), asyncio.Event()
    root = logging.getLogger()
    root.addHandler(log_buffer)
    supervisor = run.build_supervisor(configuration, records, log_buffer, Random(1))
    running = tasks.spawn(supervisor.run(stop), "node run")
    try:
        yield Node(running, stop, log_buffer)
    finally:
        running.cancel()
        await asyncio.wait({running})
        root.removeHandler(log_buffer)
        records.close()


def options(instance: LocalInstance, **changes: Any) -> InitOptions:
    user = instance.user
    return replace(
        InitOptions(
            host="127.0.0.1",
            port=instance.port,
            spec=user / "spec.yaml",
            policy=user / "policy.yaml",
            init_secret=user / "init-secret",
            secrets=user / "secrets.json",
            kubeconfig=instance.kubeconfig,
            reach_seconds=DEADLINE_SECONDS,
        ),
        **changes,
    )


async def init(instance: LocalInstance, report: RecordingReport, **changes: Any) -> bool:
    async with asyncio.timeout(DEADLINE_SECONDS):
        await listening(instance)
        return await InitSession(options(instance, **changes), report).run()


async def listening(instance: LocalInstance) -> None:
    """Waits until the listener accepts connections; the client itself would wait for seconds."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", instance.port)
        except OSError:
            await asyncio.sleep(0.005)
        else:
            writer.close()
            return


async def kubeadm_runs(instance: LocalInstance) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not instance.init_runs:  # noqa: ASYNC110 -- another process writes the file
            await asyncio.sleep(0.01)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


class Relay:
    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, family=socket.AF_INET)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def close(self) -> None:
        self._server.close()
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def relay_to(port: int) -> AsyncIterator[Relay]:
    relay = Relay(port)
    await relay.start()
    try:
        yield relay
    finally:
        relay.close()
