"""Asks for a ticket until it has one, then for the lock; whoever takes the lock first ends the asking."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from bootbridge.common.backoff import Backoff, at_leisure
from bootbridge.common.failures import PeerRefused, Transient
from bootbridge.errors import BootbridgeError
from bootbridge.join_api.instance import Instance, Metadata, Role, node_name
from bootbridge.join_api.messages import TicketRequest
from bootbridge.node.join import ticket_check
from bootbridge.node.join.flow import JoinFlow
from bootbridge.node.lock.boot_clock import seconds_since_boot
from bootbridge.node.lock.bootstrap_record import Flow
from bootbridge.node.lock.flow_inputs import JoinInputs
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.node.lock.node_state import NodeState
from bootbridge.node.ports import (
    METADATA_SECONDS_MAX,
    Address,
    Clock,
    Endpoints,
    JoinService,
    NewRequest,
    Turn,
)
from bootbridge.runtime import logs
from bootbridge.runtime.concurrency import first_success, run_unless, with_timeout
from bootbridge.trust.key_hierarchy import KeyRefused, cluster_id

# One attempt at one address: handshake, evidence, and the wait until another address has not answered.
ATTEMPT_SECONDS_MAX: Final = 60.0
# Of channels only: a ticket is asked for at one address at a time, since each leaves a token behind.
APART_SECONDS: Final = 2.0
AT_ONCE: Final = 4


@dataclass(frozen=True)
class JoinSources:
    """What a join is put together from."""

    metadata: Metadata
    endpoints: Endpoints
    service: JoinService
    new_request: NewRequest


class JoinClient:
    def __init__(
        self,
        lock: NodeLock,
        sources: JoinSources,
        flow: JoinFlow,
        random: Random,
        save_error: Callable[[str], None] = lambda text: None,
        clock: Clock = seconds_since_boot,
    ) -> None:
        self._lock = lock
        self._sources = sources
        self._flow = flow
        self._random = random
        self._save_error = save_error
        self._clock = clock

    async def run(self) -> NodeState | None:
        """The node that this instance became; None if it was not to be ours. Fatal past the lock only."""
        inputs = await run_unless(self._lock.wait_until_decided(), self._until_granted())
        if inputs is None:
            return None
        cluster = cluster_id(inputs.ticket.measurement_secret, inputs.ticket.measurement_salt)
        if not await self._lock.try_lock(Flow.JOIN, cluster, inputs.encode()):
            logs.event("node", logs.INFO, "a ticket came too late: this instance is taken")
            return None
        logs.event("node", logs.INFO, "joining", node=inputs.ticket.node_name, cluster=cluster.hex())
        return await self._flow.run(inputs)

    async def _until_granted(self) -> JoinInputs:
        """Rounds until one gives a ticket. Each asks the metadata anew: an operator may have corrected it."""
        transient, refused = Backoff(self._random), at_leisure(self._random)
        while True:
            try:
                return await self._round()
            except PeerRefused as refusal:
                transient.reset()
                pause = refused.seconds()
                self._save_error(f"refused: {refusal}")
                logs.event("node", logs.WARNING, "refused", why=str(refusal), again_in=round(pause, 1))
            except BootbridgeError as failure:
                refused.reset()
                pause = transient.seconds()
                self._save_error(f"no ticket yet: {failure}")
                logs.event("node", logs.INFO, "no ticket yet", why=str(failure), again_in=round(pause, 1))
            await asyncio.sleep(pause)

    async def _round(self) -> JoinInputs:
        metadata = self._sources.metadata
        instance = await with_timeout(METADATA_SECONDS_MAX, metadata.myself(), "the metadata")
        endpoints = self._sources.endpoints()
        addresses = await with_timeout(METADATA_SECONDS_MAX, endpoints, "the list of join services")
        if not addresses:
            raise Transient("no join service is known yet")
        attempts: list[Callable[[Turn], Awaitable[JoinInputs]]] = [
            partial(self._attempt, address, instance) for address in addresses
        ]
        inputs, failures = await first_success(attempts, apart=APART_SECONDS, at_once=AT_ONCE)
        if inputs is None:
            # One that refused has looked at us; that others did not answer says nothing against it.
            kind = PeerRefused if any(isinstance(each, PeerRefused) for each in failures) else Transient
            raise kind("; ".join(dict.fromkeys(map(str, failures))))
        return inputs

    async def _attempt(self, address: Address, instance: Instance, turn: Turn) -> JoinInputs:
        """One ticket from one address, for a key that was never used before."""
        name = node_name(instance.name)
        fresh = self._sources.new_request(name)
        request = TicketRequest(name, instance.role is Role.CONTROL_PLANE, fresh.request)
        where = f"{address[0]}:{address[1]}"
        # Before it is asked for: whatever the ticket's times began with, it was later.
        asked = int(self._clock())
        answer = self._sources.service.ticket(address, request, turn)
        ticket = await with_timeout(ATTEMPT_SECONDS_MAX, answer, where)
        try:
            ticket_check.check(ticket, instance)
            cluster_id(ticket.measurement_secret, ticket.measurement_salt)
        except (Transient, KeyRefused) as fault:
            raise Transient(f"{where}: {fault}") from fault
        return JoinInputs(ticket, fresh.key, asked)
