"""Rejoins after a reboot: measures the cluster ID again and starts the kubelet.

Renews the serving certificate if it is due, if possible before the kubelet starts and would use the old one.
A single control plane, whose join service starts with its own kubelet, renews afterwards: a rejoin ticket is
granted for a measured register as well as for a zero one. A failed renewal does not block the node.
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
from bootbridge.node.machine import Machine
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
        self._renewal_stopped = asyncio.Event()

    def stop_renewal(self) -> None:
        """Aborts a renewal after the kubelet has started: the process was asked to stop."""
        self._renewal_stopped.set()

    async def run(self, state: NodeState) -> NodeState | None:
        """Returns `state` when the node is running; None if the process was stopped before measuring."""
        await self._require_kubelet_configuration()
        due = await self._renewal.is_due()
        if due and self._lock.is_available:
            before = self._renewal.renew_within(RENEWAL_SECONDS_BEFORE, state.name)
            due = not await run_unless(self._lock.wait_until_decided(), before)
        if self._lock.holder is None and not await self._lock.try_lock(Flow.REJOIN, state.cluster_id, b""):
            return None
        await self._start_kubelet()
        self._lock.advance(Phase.DONE)
        if due:
            await self._renew(state)
        return state

    async def ensure_running(self, state: NodeState | None) -> None:
        """Ensures that the kubelet runs, in the same boot in which the instance became a node."""
        await self._start_kubelet()
        if state is not None and await self._renewal.is_due():
            await self._renew(state)

    async def _renew(self, state: NodeState) -> None:
        await run_unless(
            self._renewal_stopped.wait(), self._renewal.renew_within(RENEWAL_SECONDS_AFTER, state.name)
        )

    async def _start_kubelet(self) -> None:
        await self._require_kubelet_configuration()
        waits = Backoff(self._random)
        for attempt in range(1, KUBELET_ATTEMPTS_MAX + 1):
            try:
                await self._machine.start_kubelet()
                return
            except (BootbridgeError, OSError) as error:
                if isinstance(error, Fatal) or attempt == KUBELET_ATTEMPTS_MAX:
                    advice = "fix the kubelet and start `bootbridge node run` again"
                    raise Fatal(f"kubelet: start failed: {error}", advice=advice) from error
                logs.event("node", logs.WARNING, "kubelet start failed", attempt=attempt, error=str(error))
            await asyncio.sleep(waits.seconds())

    async def _require_kubelet_configuration(self) -> None:
        if not await self._machine.is_kubelet_configured():
            raise Fatal(
                "kubelet: configuration missing, although the node state exists",
                advice="restore it, or delete the node state file to let the instance join again",
            )
