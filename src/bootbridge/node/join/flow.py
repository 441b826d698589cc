"""What a node does with its ticket, once the lock is its own: files, kubeadm join, a note that it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Fatal
from bootbridge.errors import BootbridgeError
from bootbridge.join_api.instance import Role
from bootbridge.join_api.messages import Ticket
from bootbridge.node.init.messages import FAILED, StageEvent
from bootbridge.node.lock.boot_clock import seconds_since_boot
from bootbridge.node.lock.bootstrap_record import BootstrapRecord, Phase
from bootbridge.node.lock.flow_inputs import JoinInputs
from bootbridge.node.lock.node_lock import NodeLock, Undo, nothing_to_undo
from bootbridge.node.lock.node_state import NodeState, NodeStateStore
from bootbridge.node.ports import Clock, Machine, ProgressCallback
from bootbridge.runtime import logs
from bootbridge.trust.key_hierarchy import cluster_id

ATTEMPTS_MAX: Final = 3
ADVICE: Final = (
    "the log above says what kubeadm said; mend that and reboot the instance, it then asks for another ticket"
)


class JoinFlow:
    def __init__(
        self,
        lock: NodeLock,
        machine: Machine,
        state_store: NodeStateStore,
        backoff: Callable[[], Backoff],
        progress: ProgressCallback | None = None,
        clock: Clock = seconds_since_boot,
    ) -> None:
        self._lock = lock
        self._machine = machine
        self._state_store = state_store
        self._backoff = backoff
        self._progress = progress or log_stage
        self._clock = clock

    async def run(self, inputs: JoinInputs) -> NodeState:
        """Past the lock: ends as a node, or with Fatal."""
        async with self._lock.recording_failure(self._undo(inputs)):
            return await self._join(inputs, kubeadm_has_run=False)

    async def resume(self, record: BootstrapRecord) -> NodeState:
        """After a crash: kubeadm left anything between nothing and a whole node, so a reset comes first."""
        logs.event("node", logs.WARNING, "resuming a join", phase=record.phase, resumed=record.resumed)
        async with self._lock.recording_failure(nothing_to_undo):
            inputs = JoinInputs.decode(record.inputs)
        async with self._lock.recording_failure(self._undo(inputs)):
            if self._state_store.load() == (state := _state(inputs.ticket)):
                # It is written when all is done, so all is: a reset now would undo what is remembered.
                self._lock.mark_completed()
                self._lock.advance(Phase.DONE)
                return state
            return await self._join(inputs, kubeadm_has_run=record.phase is Phase.KUBEADM)

    async def _join(self, inputs: JoinInputs, *, kubeadm_has_run: bool) -> NodeState:
        """A control plane stops wherever it is when its turn is over: by then the next one may join."""
        turn = inputs.ticket.turn_seconds
        try:
            async with asyncio.timeout(turn - self._age(inputs) if turn else None):
                await self._attempts(inputs, kubeadm_has_run=kubeadm_has_run)
        except TimeoutError:
            raise Fatal(f"the join was not done within its turn of {turn} s", advice=ADVICE) from None
        self._lock.mark_completed()
        state = _state(inputs.ticket)
        self._state_store.save(state)
        self._lock.advance(Phase.DONE)
        return state

    async def _attempts(self, inputs: JoinInputs, *, kubeadm_has_run: bool) -> None:
        waits = self._backoff()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            self._require_good(inputs.ticket, self._age(inputs))
            try:
                await self._attempt(inputs, reset=kubeadm_has_run or attempt > 1)
                return
            except Fatal:
                raise
            except (BootbridgeError, OSError) as error:
                logs.event("node", logs.WARNING, "the join failed", attempt=attempt, why=str(error))
                if attempt == ATTEMPTS_MAX:
                    raise Fatal(
                        f"the join failed {attempt} times, at last: {error}", advice=ADVICE
                    ) from error
                await asyncio.sleep(waits.seconds())

    def _age(self, inputs: JoinInputs) -> float:
        return self._clock() - inputs.asked

    def _require_good(self, ticket: Ticket, age: float) -> None:
        """What the ticket brings is of no use any more once its token or its turn is over."""
        if age >= min(ticket.token_seconds, ticket.turn_seconds or ticket.token_seconds):
            raise Fatal("the ticket has expired since it was given", advice=ADVICE)

    def _undo(self, inputs: JoinInputs) -> Undo:
        return partial(self._machine.reset_best_effort, inputs.ticket.cri_socket, self._progress)

    async def _attempt(self, inputs: JoinInputs, *, reset: bool) -> None:
        ticket, machine = inputs.ticket, self._machine
        await machine.install_components(ticket.components, self._progress)
        self._lock.advance(Phase.KUBEADM)
        if reset or await machine.has_kubeadm_traces():
            await machine.reset(ticket.cri_socket, self._progress)
        # A reset deletes them, so they come after it, each time.
        await machine.write_ticket_files(ticket, inputs.kubelet_key)
        await machine.join(ticket, self._progress)


def _state(ticket: Ticket) -> NodeState:
    role = Role.CONTROL_PLANE if ticket.control_plane else Role.WORKER
    return NodeState(role, ticket.node_name, cluster_id(ticket.measurement_secret, ticket.measurement_salt))


def log_stage(event: StageEvent) -> None:
    """Progress for those who read this instance's log."""
    level = logs.ERROR if event.state == FAILED else logs.INFO
    logs.event("node", level, f"stage {event.state}", stage=event.name, text=event.text)
