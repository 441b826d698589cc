"""The dependencies of a join: metadata, endpoints of join services, their client, certificate requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bootbridge.join_api.instance import Metadata
from bootbridge.join_api.messages import RejoinRequest, RejoinTicket, Ticket, TicketRequest
from bootbridge.node.join.endpoints import Address
from bootbridge.node.kubelet_csr import KeyAndCsr
from bootbridge.runtime.concurrency import Turn

# The limit for every metadata request.
METADATA_SECONDS_MAX: Final = 30.0


class JoinServiceApi(Protocol):
    """The join service at one address; raises Refused with its reason, or Transient.

    The connection is opened at once; the request is sent only after `turn` has returned, so that one
    join service at a time issues a ticket.
    """

    async def request_ticket(self, address: Address, request: TicketRequest, turn: Turn) -> Ticket: ...

    async def request_rejoin_ticket(
        self, address: Address, request: RejoinRequest, turn: Turn
    ) -> RejoinTicket: ...


@dataclass(frozen=True)
class JoinSources:
    metadata: Metadata
    # Returns the addresses of join services, in order of preference; may be empty.
    endpoints: Callable[[], Awaitable[Sequence[Address]]]
    service: JoinServiceApi
    # Generates a key and a certificate request for the node of this name.
    new_request: Callable[[str], KeyAndCsr]
