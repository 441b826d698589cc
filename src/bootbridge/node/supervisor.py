"""Decides what this process does: resume a flow, rejoin after a reboot, or run init and join concurrently.

The init server, the join client and a stop request compete for the lock. Its one decision ends the others, so
none of them knows about the others.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from bootbridge.common.failures import Fatal
from bootbridge.errors import OperatorError
from bootbridge.node.init.server import InitServer
from bootbridge.node.join.client import JoinClient
from bootbridge.node.join.flow import JoinFlow
from bootbridge.node.join.rejoin import Rejoin
from bootbridge.node.lock.bootstrap_record import BootstrapRecord, Flow, Phase
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.node.lock.node_state import NodeStateStore
from bootbridge.runtime import logs, tasks
from bootbridge.runtime.concurrency import cancel_and_wait

FINISHED: Final = 0
FATAL: Final = 1
INTERRUPTED: Final = 130


@dataclass(frozen=True)
class Supervisor:
    lock: NodeLock
    state_store: NodeStateStore
    init_server: InitServer
    join_client: JoinClient
    join_flow: JoinFlow
    rejoin: Rejoin

    async def run(self, stop: asyncio.Event) -> int:
        """Returns the exit code. A stop takes effect at once before the lock, after the flow otherwise."""
        stopping = tasks.spawn(self._stop_on(stop), "node: stop")
        try:
            outcome = await self._become_node()
        except Fatal as failure:
            logs.event("node", logs.ERROR, str(failure.args[0]), advice=failure.advice)
            return FATAL
        except OperatorError as error:
            # For example a directory that is full or read-only.
            logs.event("node", logs.ERROR, str(error))
            return FATAL
        finally:
            await cancel_and_wait(stopping)
        if not outcome:
            logs.event("node", logs.INFO, "stopped before init or join started")
            return INTERRUPTED
        logs.event("node", logs.INFO, outcome)
        return FINISHED

    async def _stop_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.lock.close()
        self.init_server.stop_lingering()
        self.rejoin.stop_renewal()

    async def _become_node(self) -> str:
        """Returns a log message about the outcome; empty if stopped before the lock was taken."""
        state = self.state_store.load()
        record = await self.lock.restore(state.cluster_id if state else b"")
        if record is not None:
            await self._resume(record)
            return "node is running"
        if state is not None:
            return "node rejoined after reboot" if await self.rejoin.run(state) else ""
        return await self._race_init_and_join()

    async def _resume(self, record: BootstrapRecord) -> None:
        if record.flow is Flow.INIT and (record.phase is not Phase.DONE or record.result):
            await self.init_server.resume(record)
        elif record.phase is Phase.DONE:
            await self.rejoin.ensure_running(self.state_store.load())
        elif record.flow is Flow.JOIN:
            await self.join_flow.resume(record)
        else:
            await self._resume_rejoin()

    async def _resume_rejoin(self) -> None:
        state = self.state_store.load()
        if state is None:
            raise Fatal("node state: file missing", advice="reboot the instance: it then joins again")
        await self.rejoin.run(state)

    async def _race_init_and_join(self) -> str:
        serving = tasks.spawn(self.init_server.serve(), "node: init server", awaited=True)
        joining = tasks.spawn(self.join_client.run(), "node: join client", awaited=True)
        both = {serving, joining}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            # Both have ended, unless one failed or this task was cancelled.
            await cancel_and_wait(*both)
        for task in (serving, joining):
            if not task.cancelled():
                task.result()
        if serving.result() is not None:
            return "cluster created"
        return "cluster joined" if joining.result() is not None else ""
