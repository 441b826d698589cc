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
from bootbridge.node.lock.bootstrap_record import BootstrapRecord, Phase
from bootbridge.node.lock.flow_inputs import InitInputs, InitResult
from bootbridge.node.lock.node_lock import NodeLock, Undo, nothing_to_undo
from bootbridge.node.lock.node_state import NodeState, NodeStateStore
from bootbridge.node.ports import JoinServiceSetup, Machine, ProgressCallback
from bootbridge.runtime import logs
from bootbridge.trust.key_hierarchy import cluster_id

JOIN_SERVICE_ATTEMPTS_MAX: Final = 8
ADVICE: Final = "mend what the log names, reboot the instance and init again; nothing of this attempt is kept"


class InitFlow:
    def __init__(
        self, lock: NodeLock, machine: Machine, state_store: NodeStateStore, backoff: Callable[[], Backoff]
    ) -> None:
        self._lock = lock
        self._machine = machine
        self._state_store = state_store
        self._backoff = backoff

    async def run(self, inputs: InitInputs, progress: ProgressCallback) -> InitSuccess:
        """Past the lock: ends with a cluster, or with Fatal."""
        async with self._lock.recording_failure(self._undo(inputs, progress)):
            return await self._init(inputs, progress, kubeadm_has_run=False)

    async def resume(self, record: BootstrapRecord, progress: ProgressCallback) -> InitSuccess:
        """After a crash. An API server that was ready is kept: others may have joined it already."""
        logs.event("node", logs.WARNING, "resuming an init", phase=record.phase, resumed=record.resumed)
        async with self._lock.recording_failure(nothing_to_undo):
            inputs = InitInputs.decode(record.inputs)
            undo = self._undo(inputs, progress)
        async with self._lock.recording_failure(undo):
            if record.phase is Phase.JOIN_SERVICE:
                return await self._set_up_join_service(inputs, record.result, progress)
            return await self._init(inputs, progress, kubeadm_has_run=record.phase is Phase.KUBEADM)

    async def _init(
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
            # What may be tried again has been, where it was met; here a user waits for an answer.
            raise Fatal(str(error), advice=ADVICE) from error
        self._lock.advance(Phase.JOIN_SERVICE, kubeconfig)
        return await self._set_up_join_service(inputs, kubeconfig, progress)

    def _undo(self, inputs: InitInputs, progress: ProgressCallback) -> Undo:
        return partial(self._machine.reset_best_effort, inputs.spec.cri_socket, progress)

    async def _set_up_join_service(
        self, inputs: InitInputs, kubeconfig: bytes, progress: ProgressCallback
    ) -> InitSuccess:
        cluster = cluster_id(inputs.measurement_secret, inputs.measurement_salt)
        await self._set_up_with_retries(_join_service_setup(inputs, inputs.spec, kubeconfig), progress)
        self._state_store.save(NodeState(Role.CONTROL_PLANE, node_name(inputs.name), cluster))
        self._lock.advance(Phase.DONE, InitResult(inputs.init_id, kubeconfig).encode())
        return InitSuccess(kubeconfig, cluster)

    async def _set_up_with_retries(self, setup: JoinServiceSetup, progress: ProgressCallback) -> None:
        """A young API server says no to many things, for a while."""
        waits = self._backoff()
        for attempt in range(1, JOIN_SERVICE_ATTEMPTS_MAX + 1):
            try:
                await self._machine.set_up_join_service(setup, progress)
                return
            except Transient as error:
                logs.event("node", logs.WARNING, "founding failed", attempt=attempt, why=str(error))
                if attempt == JOIN_SERVICE_ATTEMPTS_MAX:
                    raise Fatal(f"the join service cannot be deployed: {error}", advice=ADVICE) from error
                await asyncio.sleep(waits.seconds())


def _join_service_setup(inputs: InitInputs, spec: ClusterSpec, kubeconfig: bytes) -> JoinServiceSetup:
    return JoinServiceSetup(
        spec,
        inputs.instance,
        kubeconfig,
        inputs.measurement_secret,
        inputs.measurement_salt,
        inputs.join_policy,
    )
