"""Renews the kubelet's serving certificate through a join service when it is due.

A running kubelet reloads the file by itself.
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
from bootbridge.node.join.client import APART_SECONDS, CONNECTIONS_MAX
from bootbridge.node.join.endpoints import Address, format_address
from bootbridge.node.join.sources import JoinSources
from bootbridge.node.join.ticket_files import check_pair
from bootbridge.node.machine import Machine
from bootbridge.runtime import logs
from bootbridge.runtime.concurrency import Turn, first_success

# As a fraction of the validity; the rest is left to fix a renewal that fails.
RENEWAL_DUE: Final = 2 / 3


class ServingRenewal:
    def __init__(
        self,
        machine: Machine,
        sources: JoinSources,
        random: Random,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._machine = machine
        self._sources = sources
        self._random = random
        self._now = now

    async def is_due(self) -> bool:
        """Returns whether a certificate of ours should be renewed; an unusable one always should."""
        try:
            pem = await self._machine.read_serving_certificate()
            return bool(pem) and self._past_due(check_pair(pem, pem))
        except (BootbridgeError, OSError) as error:
            logs.event("node", logs.WARNING, "invalid serving certificate", error=str(error))
            return True

    async def renew_within(self, seconds: float, name: str) -> bool:
        """Retries until the renewal succeeds or the time is over; returns and logs which."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._renew_with_retries(name)
                logs.event("node", logs.INFO, "serving certificate renewed")
                return True
        logs.event("node", logs.WARNING, "serving certificate renewal timed out", seconds=seconds)
        return False

    def _past_due(self, certificate: x509.Certificate) -> bool:
        starts, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return self._now() >= starts + (ends - starts) * RENEWAL_DUE

    async def _renew_with_retries(self, name: str) -> None:
        waits = Backoff(self._random)
        while True:
            try:
                await self._renew(name)
                return
            except (BootbridgeError, OSError) as error:
                logs.event("node", logs.INFO, "serving certificate renewal failed", error=str(error))
            await asyncio.sleep(waits.seconds())

    async def _renew(self, name: str) -> None:
        fresh = self._sources.new_request(name)
        request = RejoinRequest(name, fresh.csr)
        attempts: list[Callable[[Turn], Awaitable[bytes]]] = [
            partial(self._request_certificate, address, request)
            for address in await self._sources.endpoints()
        ]
        certificate, failures = await first_success(attempts, apart=APART_SECONDS, at_once=CONNECTIONS_MAX)
        if certificate is None:
            raise Transient("; ".join(map(str, failures)) or "no join service is known")
        await self._machine.write_serving_certificate(certificate, fresh.key)

    async def _request_certificate(self, address: Address, request: RejoinRequest, turn: Turn) -> bytes:
        ticket = await self._sources.service.request_rejoin_ticket(address, request, turn)
        if ticket.node_name != request.node_name or not ticket.kubelet_certificate:
            raise Transient(f"{format_address(address)}: ticket is not for {request.node_name}")
        return ticket.kubelet_certificate
