"""How the first node comes to be, once the lock is its own: kubeadm init, then the join service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Fatal, Transient
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.instance import Role, node_name
from bootbridge.node.init.messages import InitSuccess
from bootbridge.node.lock.node_lock import NodeLock, Undo, nothing
from bootbridge.node.lock.node_state import NodeState, States
from bootbridge.node.lock.phases import Phase, Record
from bootbridge.node.lock.work import InitResult, InitWork
from bootbridge.node.ports import Founding, Machine, Say
from bootbridge.runtime import logs
from bootbridge.trust.key_hierarchy import cluster_id

FOUNDING_ATTEMPTS_MAX: Final = 8
ADVICE: Final = "mend what the log names, reboot the instance and init again; nothing of this attempt is kept"


class InitFlow:
    def __init__(
        self, lock: NodeLock, machine: Machine, states: States, backoff: Callable[[], Backoff]
    ) -> None:
        self._lock = lock
        self._machine = machine
        self._states = states
        self._backoff = backoff

    async def run(self, work: InitWork, say: Say) -> InitSuccess:
        """Past the lock: ends with a cluster, or with Fatal."""
        async with self._lock.for_good(self._undo(work, say)):
            return await self._init(work, say, kubeadm_has_run=False)

    async def resume(self, record: Record, say: Say) -> InitSuccess:
        """After a crash. An API server that was ready is kept: others may have joined it already."""
        logs.event("node", logs.WARNING, "resuming an init", phase=record.phase, resumed=record.resumed)
        async with self._lock.for_good(nothing):
            work = InitWork.decode(record.work)
            undo = self._undo(work, say)
        async with self._lock.for_good(undo):
            if record.phase is Phase.FOUNDING:
                return await self._found(work, record.result, say)
            return await self._init(work, say, kubeadm_has_run=record.phase is Phase.KUBEADM)

    async def _init(self, work: InitWork, say: Say, *, kubeadm_has_run: bool) -> InitSuccess:
        spec, machine = work.spec, self._machine
        try:
            await machine.install(spec.components, say)
            self._lock.advance(Phase.KUBEADM)
            if kubeadm_has_run or await machine.leftovers():
                await machine.reset(spec.cri_socket, say)
            kubeconfig = await machine.init(spec, work.instance, work.certificate_days, say)
        except Transient as error:
            # What may be tried again has been, where it was met; here a user waits for an answer.
            raise Fatal(str(error), advice=ADVICE) from error
        self._lock.advance(Phase.FOUNDING, kubeconfig)
        return await self._found(work, kubeconfig, say)

    def _undo(self, work: InitWork, say: Say) -> Undo:
        return partial(self._machine.clear, work.spec.cri_socket, say)

    async def _found(self, work: InitWork, kubeconfig: bytes, say: Say) -> InitSuccess:
        cluster = cluster_id(work.measurement_secret, work.measurement_salt)
        await self._with_patience(_founding(work, work.spec, kubeconfig), say)
        self._states.save(NodeState(Role.CONTROL_PLANE, node_name(work.name), cluster))
        self._lock.advance(Phase.DONE, InitResult(work.init_id, kubeconfig).encode())
        return InitSuccess(kubeconfig, cluster)

    async def _with_patience(self, founding: Founding, say: Say) -> None:
        """A young API server says no to many things, for a while."""
        waits = self._backoff()
        for attempt in range(1, FOUNDING_ATTEMPTS_MAX + 1):
            try:
                await self._machine.found(founding, say)
                return
            except Transient as error:
                logs.event("node", logs.WARNING, "founding failed", attempt=attempt, why=str(error))
                if attempt == FOUNDING_ATTEMPTS_MAX:
                    raise Fatal(f"the join service cannot be deployed: {error}", advice=ADVICE) from error
                await asyncio.sleep(waits.seconds())


def _founding(work: InitWork, spec: ClusterSpec, kubeconfig: bytes) -> Founding:
    return Founding(
        spec, work.instance, kubeconfig, work.measurement_secret, work.measurement_salt, work.join_policy
    )
