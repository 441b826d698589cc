"""A node's serving certificate is renewed when it is due, by a join service that can be asked.

Nothing else of the node is touched, and a kubelet that runs reads the new one by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Final

from cryptography import x509

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Transient
from bootbridge.errors import BootbridgeError
from bootbridge.join_api.messages import RejoinRequest
from bootbridge.node.join.client import APART_SECONDS, AT_ONCE, JoinSources
from bootbridge.node.join.ticket_files import check_pair
from bootbridge.node.ports import Address, Machine, Now
from bootbridge.runtime import logs
from bootbridge.runtime.concurrency import Turn, first_success

# Of a certificate's life; the rest is for finding out why it could not be renewed.
RENEWAL_DUE: Final = 2 / 3


class ServingRenewal:
    def __init__(
        self,
        machine: Machine,
        sources: JoinSources,
        random: Random,
        now: Now = lambda: datetime.now(UTC),
    ) -> None:
        self._machine = machine
        self._sources = sources
        self._random = random
        self._now = now

    async def due(self) -> bool:
        """Whether there is one of ours that should be renewed by now; one that is of no use should be."""
        try:
            pem = await self._machine.read_serving_certificate()
            return bool(pem) and self._past_due(check_pair(pem, pem))
        except (BootbridgeError, OSError) as error:
            logs.event("node", logs.WARNING, "the serving certificate cannot be used", why=str(error))
            return True

    async def done_within(self, seconds: float, name: str) -> bool:
        """Tried until it works or the time is over; the log says which."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._until_renewed(name)
                logs.event("node", logs.INFO, "the serving certificate was renewed")
                return True
        logs.event("node", logs.WARNING, "the serving certificate is due and could not be renewed yet")
        return False

    def _past_due(self, certificate: x509.Certificate) -> bool:
        starts, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return self._now() >= starts + (ends - starts) * RENEWAL_DUE

    async def _until_renewed(self, name: str) -> None:
        waits = Backoff(self._random)
        while True:
            try:
                await self._renew(name)
                return
            except (BootbridgeError, OSError) as error:
                logs.event("node", logs.INFO, "no new serving certificate yet", why=str(error))
            await asyncio.sleep(waits.seconds())

    async def _renew(self, name: str) -> None:
        fresh = self._sources.new_request(name)
        request = RejoinRequest(name, fresh.request)
        attempts: list[Callable[[Turn], Awaitable[bytes]]] = [
            partial(self._certificate, address, request) for address in await self._sources.endpoints()
        ]
        certificate, failures = await first_success(attempts, apart=APART_SECONDS, at_once=AT_ONCE)
        if certificate is None:
            raise Transient("; ".join(map(str, failures)) or "no join service is known")
        await self._machine.write_serving_certificate(certificate, fresh.key)

    async def _certificate(self, address: Address, request: RejoinRequest, turn: Turn) -> bytes:
        ticket = await self._sources.service.rejoin_ticket(address, request, turn)
        if ticket.node_name != request.node_name or not ticket.kubelet_certificate:
            raise Transient(f"{address[0]}:{address[1]}: the answer is not for {request.node_name}")
        return ticket.kubelet_certificate
