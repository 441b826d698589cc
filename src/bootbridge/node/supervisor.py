"""From start to exit code: what this boot has begun is gone on with; else init and join run side by side.

Three want the lock: the init server, the join client, and whoever asks this process to stop. The lock's one
decision ends the other two, so that none needs to know of the others.
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
        """The exit code. Before the lock a stop is obeyed at once, after it when the work is done."""
        stopping = tasks.spawn(self._stop_on(stop), "node: stop")
        try:
            outcome = await self._outcome()
        except Fatal as failure:
            logs.event("node", logs.ERROR, str(failure.args[0]), advice=failure.advice)
            return FATAL
        except OperatorError as error:
            # A directory that is full or read-only; the text says which, and what to do.
            logs.event("node", logs.ERROR, str(error))
            return FATAL
        finally:
            await cancel_and_wait(stopping)
        if not outcome:
            logs.event("node", logs.INFO, "stopped before anything was begun")
            return INTERRUPTED
        logs.event("node", logs.INFO, outcome)
        return FINISHED

    async def _stop_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.lock.close()
        self.init_server.hurry()
        self.rejoin.hurry()

    async def _outcome(self) -> str:
        """What this instance is now; empty if it was stopped before it became anything."""
        state = self.state_store.load()
        record = await self.lock.restore(state.cluster_id if state else b"")
        if record is not None:
            return await self._resumed(record)
        if state is not None:
            return "this instance is a node again" if await self.rejoin.run(state) else ""
        return await self._race()

    async def _resumed(self, record: BootstrapRecord) -> str:
        if record.flow is Flow.INIT and (record.phase is not Phase.DONE or record.result):
            await self.init_server.resume(record)
        elif record.phase is Phase.DONE:
            await self.rejoin.settle(self.state_store.load())
        elif record.flow is Flow.JOIN:
            await self.join_flow.resume(record)
        else:
            await self._rejoined()
        return "this instance is a node"

    async def _rejoined(self) -> None:
        state = self.state_store.load()
        if state is None:
            raise Fatal("what this instance remembered is gone", advice="reboot it: it then joins anew")
        await self.rejoin.run(state)

    async def _race(self) -> str:
        serving = tasks.spawn(self.init_server.serve(), "node: init server", awaited=True)
        joining = tasks.spawn(self.join_client.run(), "node: join client", awaited=True)
        both = {serving, joining}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            # Both have ended, unless one failed or we are cancelled ourselves.
            await cancel_and_wait(*both)
        for task in (serving, joining):
            if not task.cancelled():
                task.result()
        if serving.result() is not None:
            return "this instance is the first node of its cluster"
        return "this instance has joined its cluster" if joining.result() is not None else ""
