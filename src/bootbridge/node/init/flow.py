"""The init of the first node, after the lock was taken: kubeadm init, then the join service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Fatal, Transient
from bootbridge.join_api.instance import Role, node_name
from bootbridge.node.init.messages import InitSuccess
from bootbridge.node.lock.bootstrap_record import BootstrapRecord, Phase
from bootbridge.node.lock.flow_inputs import InitInputs, InitResult
from bootbridge.node.lock.node_lock import NodeLock, Undo, nothing_to_undo
from bootbridge.node.lock.node_state import NodeState, NodeStateStore
from bootbridge.node.machine import JoinServiceSetup, Machine
from bootbridge.node.stages import ProgressCallback
from bootbridge.runtime import logs
from bootbridge.trust.key_hierarchy import cluster_id

JOIN_SERVICE_ATTEMPTS_MAX: Final = 8
ADVICE: Final = (
    "fix what the log reports, reboot the instance and run init again; nothing of this init is kept"
)


class InitFlow:
    def __init__(
        self, lock: NodeLock, machine: Machine, state_store: NodeStateStore, backoff: Callable[[], Backoff]
    ) -> None:
        self._lock = lock
        self._machine = machine
        self._state_store = state_store
        self._backoff = backoff

    async def run(self, inputs: InitInputs, progress: ProgressCallback) -> InitSuccess:
        """Creates the cluster or raises Fatal."""
        async with self._lock.recording_failure(self._undo(inputs, progress)):
            return await self._run_kubeadm_init(inputs, progress, kubeadm_has_run=False)

    async def resume(self, record: BootstrapRecord, progress: ProgressCallback) -> InitSuccess:
        """Continues after a crash. Keeps an API server that was ready: other nodes may have joined it."""
        logs.event("node", logs.WARNING, "init resumed", phase=record.phase, resumed=record.resumed)
        async with self._lock.recording_failure(nothing_to_undo):
            inputs = InitInputs.decode(record.inputs)
            undo = self._undo(inputs, progress)
        async with self._lock.recording_failure(undo):
            if record.phase is Phase.JOIN_SERVICE:
                return await self._set_up_join_service(inputs, record.result, progress)
            kubeadm_has_run = record.phase is Phase.KUBEADM
            return await self._run_kubeadm_init(inputs, progress, kubeadm_has_run=kubeadm_has_run)

    async def _run_kubeadm_init(
        self, inputs: InitInputs, progress: ProgressCallback, *, kubeadm_has_run: bool
    ) -> InitSuccess:
        spec, machine = inputs.spec, self._machine
        try:
            await machine.install_components(spec.components, progress)
            self._lock.advance(Phase.KUBEADM)
            if kubeadm_has_run or await machine.has_kubeadm_traces():
                await machine.reset(spec.cri_socket, progress)
            kubeconfig = await machine.init(spec, inputs.instance, inputs.certificate_days, progress)
        except Transient as error:
            # The steps have retried where a retry helps; an operator waits for the outcome.
            raise Fatal(str(error), advice=ADVICE) from error
        self._lock.advance(Phase.JOIN_SERVICE, kubeconfig)
        return await self._set_up_join_service(inputs, kubeconfig, progress)

    async def _set_up_join_service(
        self, inputs: InitInputs, kubeconfig: bytes, progress: ProgressCallback
    ) -> InitSuccess:
        secret, salt = inputs.measurement_secret, inputs.measurement_salt
        setup = JoinServiceSetup(inputs.spec, inputs.instance, kubeconfig, secret, salt, inputs.join_policy)
        cluster = cluster_id(secret, salt)
        await self._set_up_with_retries(setup, progress)
        self._state_store.save(NodeState(Role.CONTROL_PLANE, node_name(inputs.name), cluster))
        self._lock.advance(Phase.DONE, InitResult(inputs.init_id, kubeconfig).encode())
        return InitSuccess(kubeconfig, cluster)

    async def _set_up_with_retries(self, setup: JoinServiceSetup, progress: ProgressCallback) -> None:
        """An API server that has just started rejects many requests for a while."""
        waits = self._backoff()
        for attempt in range(1, JOIN_SERVICE_ATTEMPTS_MAX + 1):
            try:
                await self._machine.set_up_join_service(setup, progress)
                return
            except Transient as error:
                logs.event(
                    "node", logs.WARNING, "join service setup failed", attempt=attempt, error=str(error)
                )
                if attempt == JOIN_SERVICE_ATTEMPTS_MAX:
                    raise Fatal(f"join service: deployment failed: {error}", advice=ADVICE) from error
                await asyncio.sleep(waits.seconds())

    def _undo(self, inputs: InitInputs, progress: ProgressCallback) -> Undo:
        return partial(self._machine.reset_best_effort, inputs.spec.cri_socket, progress)
