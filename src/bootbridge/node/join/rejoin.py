"""A node that was rebooted is a node again: measured for its cluster, its kubelet started.

Its serving certificate is renewed on the way, where it is due and a join service can be asked: best before
the kubelet starts, which would show the old one. A lone control plane, whose join service comes up with its
own kubelet, asks afterwards: a rejoin takes a register that is measured as well as one at zero. Neither keeps
the node from starting.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Fatal
from bootbridge.errors import BootbridgeError
from bootbridge.node.join.serving_renewal import ServingRenewal
from bootbridge.node.lock.bootstrap_record import Flow, Phase
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.node.lock.node_state import NodeState
from bootbridge.node.ports import Machine
from bootbridge.runtime import logs
from bootbridge.runtime.concurrency import run_unless

KUBELET_ATTEMPTS_MAX: Final = 5
RENEWAL_SECONDS_BEFORE: Final = 30.0
RENEWAL_SECONDS_AFTER: Final = 180.0


class Rejoin:
    def __init__(self, lock: NodeLock, machine: Machine, renewal: ServingRenewal, random: Random) -> None:
        self._lock = lock
        self._machine = machine
        self._renewal = renewal
        self._random = random
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """A renewal may wait for the next occasion: this process is wanted gone."""
        self._hurried.set()

    async def run(self, state: NodeState) -> NodeState | None:
        """The node that this instance is again; None if it was stopped before it was measured."""
        await self._require_configuration()
        due = await self._renewal.due()
        if due and self._lock.is_available:
            before = self._renewal.done_within(RENEWAL_SECONDS_BEFORE, state.name)
            due = not await run_unless(self._lock.wait_until_decided(), before)
        if self._lock.holder is None and not await self._lock.try_lock(Flow.REJOIN, state.cluster_id, b""):
            return None
        await self._start_kubelet()
        self._lock.advance(Phase.DONE)
        if due:
            await self._renew(state)
        return state

    async def settle(self, state: NodeState | None) -> None:
        """In the boot in which it has become a node: see that it is one still."""
        await self._start_kubelet()
        if state is not None and await self._renewal.due():
            await self._renew(state)

    async def _renew(self, state: NodeState) -> None:
        await run_unless(self._hurried.wait(), self._renewal.done_within(RENEWAL_SECONDS_AFTER, state.name))

    async def _start_kubelet(self) -> None:
        """See that the kubelet runs, and never without its configuration."""
        await self._require_configuration()
        waits = Backoff(self._random)
        for attempt in range(1, KUBELET_ATTEMPTS_MAX + 1):
            try:
                await self._machine.start_kubelet()
                return
            except (BootbridgeError, OSError) as error:
                if isinstance(error, Fatal) or attempt == KUBELET_ATTEMPTS_MAX:
                    advice = "see why the kubelet does not start, then start this program again"
                    raise Fatal(f"the kubelet cannot be started: {error}", advice=advice) from error
                logs.event("node", logs.WARNING, "the kubelet does not start", why=str(error))
            await asyncio.sleep(waits.seconds())

    async def _require_configuration(self) -> None:
        if not await self._machine.is_kubelet_configured():
            raise Fatal(
                "this instance remembers that it is a node, but the kubelet's configuration is gone",
                advice="restore it, or remove the node's state file to let the instance join anew",
            )
