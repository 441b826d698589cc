"""Requests a ticket until one is granted, takes the lock and joins; ends if another flow takes the lock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final

from bootbridge.common.backoff import Backoff, at_leisure
from bootbridge.common.failures import PeerRefused, Transient
from bootbridge.errors import BootbridgeError
from bootbridge.join_api.instance import Instance, Role, node_name
from bootbridge.join_api.messages import TicketRequest
from bootbridge.node.join import ticket_check
from bootbridge.node.join.endpoints import Address, format_address
from bootbridge.node.join.flow import JoinFlow
from bootbridge.node.join.sources import METADATA_SECONDS_MAX, JoinSources
from bootbridge.node.lock.bootstrap_record import Flow
from bootbridge.node.lock.flow_inputs import BootClock, JoinInputs, seconds_since_boot
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.node.lock.node_state import NodeState
from bootbridge.runtime import logs
from bootbridge.runtime.concurrency import Turn, first_success, run_unless, with_timeout
from bootbridge.trust.key_hierarchy import KeyRefused, cluster_id

# One attempt at one address: handshake, evidence, and the wait for the attempts at other addresses.
ATTEMPT_SECONDS_MAX: Final = 60.0
# Between opening connections. Requests are sent one at a time, since each ticket creates a bootstrap token.
APART_SECONDS: Final = 2.0
CONNECTIONS_MAX: Final = 4


class JoinClient:
    def __init__(
        self,
        lock: NodeLock,
        sources: JoinSources,
        flow: JoinFlow,
        random: Random,
        save_error: Callable[[str], None] = lambda text: None,
        clock: BootClock = seconds_since_boot,
    ) -> None:
        self._lock = lock
        self._sources = sources
        self._flow = flow
        self._random = random
        self._save_error = save_error
        self._clock = clock

    async def run(self) -> NodeState | None:
        """Returns the new node's state; None if another flow took the lock. Raises Fatal after the lock."""
        inputs = await run_unless(self._lock.wait_until_decided(), self._request_until_granted())
        if inputs is None:
            return None
        cluster = cluster_id(inputs.ticket.measurement_secret, inputs.ticket.measurement_salt)
        if not await self._lock.try_lock(Flow.JOIN, cluster, inputs.encode()):
            logs.event("node", logs.INFO, "ticket discarded: node lock is taken")
            return None
        logs.event("node", logs.INFO, "joining", node=inputs.ticket.node_name, cluster=cluster.hex())
        return await self._flow.run(inputs)

    async def _request_until_granted(self) -> JoinInputs:
        """Reads the metadata anew for every round: an operator may have corrected it."""
        transient, refused = Backoff(self._random), at_leisure(self._random)
        while True:
            try:
                return await self._request_from_any()
            except PeerRefused as error:
                transient.reset()
                pause = refused.seconds()
                self._save_error(f"ticket refused: {error}")
                retry = round(pause, 1)
                logs.event("node", logs.WARNING, "ticket refused", reason=str(error), retry_in=retry)
            except BootbridgeError as error:
                refused.reset()
                pause = transient.seconds()
                self._save_error(f"no ticket yet: {error}")
                retry = round(pause, 1)
                logs.event("node", logs.INFO, "no ticket yet", reason=str(error), retry_in=retry)
            await asyncio.sleep(pause)

    async def _request_from_any(self) -> JoinInputs:
        """Returns the first ticket that a join service grants; raises PeerRefused if at least one refused."""
        metadata = self._sources.metadata
        instance = await with_timeout(METADATA_SECONDS_MAX, metadata.myself(), "metadata")
        addresses = await with_timeout(
            METADATA_SECONDS_MAX, self._sources.endpoints(), "list of join services"
        )
        if not addresses:
            raise Transient("no join service is known yet")
        attempts: list[Callable[[Turn], Awaitable[JoinInputs]]] = [
            partial(self._request_from, address, instance) for address in addresses
        ]
        inputs, failures = await first_success(attempts, apart=APART_SECONDS, at_once=CONNECTIONS_MAX)
        if inputs is None:
            # A refusal is a decision about this instance; an unreachable join service is not.
            kind = PeerRefused if any(isinstance(each, PeerRefused) for each in failures) else Transient
            raise kind("; ".join(dict.fromkeys(map(str, failures))))
        return inputs

    async def _request_from(self, address: Address, instance: Instance, turn: Turn) -> JoinInputs:
        """Requests a ticket at one address, with a new key for every request."""
        name = node_name(instance.name)
        fresh = self._sources.new_request(name)
        request = TicketRequest(name, instance.role is Role.CONTROL_PLANE, fresh.csr)
        where = format_address(address)
        # Before the request: the validity of the ticket starts later, so its age is never underestimated.
        requested_at = int(self._clock())
        response = self._sources.service.request_ticket(address, request, turn)
        ticket = await with_timeout(ATTEMPT_SECONDS_MAX, response, where)
        try:
            ticket_check.check(ticket, instance)
            cluster_id(ticket.measurement_secret, ticket.measurement_salt)
        except (Transient, KeyRefused) as error:
            raise Transient(f"{where}: {error}") from error
        return JoinInputs(ticket, fresh.key, requested_at)
