"""The join of a node, after the lock was taken: components, ticket files, kubeadm join, node state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Fatal
from bootbridge.errors import BootbridgeError
from bootbridge.join_api.instance import Role
from bootbridge.join_api.messages import Ticket
from bootbridge.node.lock.bootstrap_record import BootstrapRecord, Phase
from bootbridge.node.lock.flow_inputs import BootClock, JoinInputs, seconds_since_boot
from bootbridge.node.lock.node_lock import NodeLock, Undo, nothing_to_undo
from bootbridge.node.lock.node_state import NodeState, NodeStateStore
from bootbridge.node.machine import Machine, NodeStillReady
from bootbridge.node.stages import ProgressCallback, log_stage
from bootbridge.runtime import logs
from bootbridge.trust.key_hierarchy import cluster_id

ATTEMPTS_MAX: Final = 3
# How long an interrupted join waits until its own Node is not Ready any more. Kubernetes needs up to 50 s to
# notice that a kubelet has stopped.
STILL_READY_SECONDS_MAX: Final = 120.0
ADVICE: Final = "fix what kubeadm reports in the log and reboot the instance; it then requests a new ticket"
NAME_ADVICE: Final = (
    "give one of the two instances of this name another one, or delete the Node, and reboot the instance"
)


class JoinFlow:
    def __init__(
        self,
        lock: NodeLock,
        machine: Machine,
        state_store: NodeStateStore,
        backoff: Callable[[], Backoff],
        progress: ProgressCallback = log_stage,
        clock: BootClock = seconds_since_boot,
    ) -> None:
        self._lock = lock
        self._machine = machine
        self._state_store = state_store
        self._backoff = backoff
        self._progress = progress
        self._clock = clock

    async def run(self, inputs: JoinInputs) -> NodeState:
        """Joins the cluster or raises Fatal."""
        async with self._lock.recording_failure(self._undo(inputs)):
            return await self._join(inputs, kubeadm_has_run=False)

    async def resume(self, record: BootstrapRecord) -> NodeState:
        """Continues after a crash; resets first if kubeadm may have run."""
        logs.event("node", logs.WARNING, "join resumed", phase=record.phase, resumed=record.resumed)
        async with self._lock.recording_failure(nothing_to_undo):
            inputs = JoinInputs.decode(record.inputs)
        async with self._lock.recording_failure(self._undo(inputs)):
            if self._state_store.load() == (state := _node_state(inputs.ticket)):
                # The state is written last, so the join had completed: a reset would destroy a working node.
                self._lock.mark_completed()
                self._lock.advance(Phase.DONE)
                return state
            return await self._join(inputs, kubeadm_has_run=record.phase is Phase.KUBEADM)

    async def _join(self, inputs: JoinInputs, *, kubeadm_has_run: bool) -> NodeState:
        """A control plane aborts when its turn is over: the next control plane may join from then on."""
        turn = inputs.ticket.turn_seconds
        try:
            async with asyncio.timeout(turn - self._ticket_age(inputs) if turn else None):
                await self._join_with_retries(inputs, kubeadm_has_run=kubeadm_has_run)
        except TimeoutError:
            raise Fatal(f"join: timed out after its turn of {turn} s", advice=ADVICE) from None
        self._lock.mark_completed()
        state = _node_state(inputs.ticket)
        self._state_store.save(state)
        self._lock.advance(Phase.DONE)
        return state

    async def _join_with_retries(self, inputs: JoinInputs, *, kubeadm_has_run: bool) -> None:
        waits, attempt, ready_until = self._backoff(), 1, inf
        while True:
            self._require_valid(inputs.ticket, self._ticket_age(inputs))
            try:
                await self._join_once(inputs, reset=kubeadm_has_run)
                return
            except Fatal:
                raise
            except NodeStillReady as error:
                logs.event("node", logs.WARNING, "join waits for its own node", error=str(error))
                ready_until = min(ready_until, self._clock() + STILL_READY_SECONDS_MAX)
                if self._clock() >= ready_until:
                    text = f"join: the node was still Ready after {STILL_READY_SECONDS_MAX:.0f} s: {error}"
                    raise Fatal(text, advice=NAME_ADVICE) from error
            except (BootbridgeError, OSError) as error:
                logs.event("node", logs.WARNING, "join failed", attempt=attempt, error=str(error))
                if attempt == ATTEMPTS_MAX:
                    raise Fatal(f"join: failed {attempt} times: {error}", advice=ADVICE) from error
                attempt += 1
            kubeadm_has_run = True
            await asyncio.sleep(waits.seconds())

    async def _join_once(self, inputs: JoinInputs, *, reset: bool) -> None:
        ticket, machine = inputs.ticket, self._machine
        await machine.install_components(ticket.components, self._progress)
        self._lock.advance(Phase.KUBEADM)
        if reset or await machine.has_kubeadm_traces():
            await machine.reset(ticket.cri_socket, self._progress)
        # After the reset, which deletes them.
        await machine.write_ticket_files(ticket, inputs.kubelet_key)
        await machine.join(ticket, self._progress)

    def _ticket_age(self, inputs: JoinInputs) -> float:
        return self._clock() - inputs.requested_at

    def _require_valid(self, ticket: Ticket, age: float) -> None:
        if age >= min(ticket.token_seconds, ticket.turn_seconds or ticket.token_seconds):
            raise Fatal("join: ticket expired", advice=ADVICE)

    def _undo(self, inputs: JoinInputs) -> Undo:
        return partial(self._machine.reset_best_effort, inputs.ticket.cri_socket, self._progress)


def _node_state(ticket: Ticket) -> NodeState:
    role = Role.CONTROL_PLANE if ticket.control_plane else Role.WORKER
    return NodeState(role, ticket.node_name, cluster_id(ticket.measurement_secret, ticket.measurement_salt))
