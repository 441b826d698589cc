"""The client of join services: one attested TLS connection per call, and the classification of failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bootbridge.common.failures import PeerRefused, Transient
from bootbridge.errors import PeerError
from bootbridge.join_api.instance import Instance
from bootbridge.join_api.messages import (
    ISSUE_REJOIN_TICKET,
    ISSUE_TICKET,
    JOIN_LABEL,
    RejoinRequest,
    RejoinTicket,
    Ticket,
    TicketRequest,
)
from bootbridge.node.join.control_plane_keys import require_control_plane_key
from bootbridge.node.join.endpoints import Address, format_address
from bootbridge.runtime.concurrency import Turn
from bootbridge.runtime.grpc import GrpcClient, RpcError
from bootbridge.trust.attested.channel import Attestation, ChannelFailed, connect
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused, EvidenceUnavailable
from bootbridge.trust.identity import KINDS_WITH_KEY
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.proto import Message

ANSWER_SECONDS: Final = 25.0
PEER: Final = "the join service"
# Answers that only an operator can change; all others may change without one.
_REFUSALS: Final = (grpc.PERMISSION_DENIED, grpc.INVALID_ARGUMENT, grpc.UNAUTHENTICATED)

Response = TypeVar("Response", bound=Message)


async def no_instances() -> tuple[Instance, ...]:
    return ()


async def no_key() -> str:
    return ""


async def no_turn() -> None:
    """The Turn of a call without concurrent attempts."""


class JoinServiceClient:
    """Implements `sources.JoinServiceApi`; `side` has the evidence that we send and that we require.

    `peers` returns the instances whose keys are known, `own_key` this instance's key: a control plane may
    call the join service that runs on itself.
    """

    def __init__(
        self,
        side: Attestation,
        peers: Callable[[], Awaitable[tuple[Instance, ...]]] = no_instances,
        own_key: Callable[[], Awaitable[str]] = no_key,
    ) -> None:
        self._side = side
        self._peers = peers
        self._own_key = own_key

    async def request_ticket(self, address: Address, request: TicketRequest, turn: Turn = no_turn) -> Ticket:
        return await self._call(address, ISSUE_TICKET, request, Ticket, turn)

    async def request_rejoin_ticket(
        self, address: Address, request: RejoinRequest, turn: Turn = no_turn
    ) -> RejoinTicket:
        return await self._call(address, ISSUE_REJOIN_TICKET, request, RejoinTicket, turn)

    async def _call(
        self, address: Address, path: str, request: Message, response: type[Response], turn: Turn
    ) -> Response:
        """Raises Refused if only an operator can change the answer, else Transient; both name the address."""
        where = format_address(address)
        try:
            return response.decode(await self._call_over_channel(address, path, request.encode(), turn))
        except EvidenceRefused as error:
            raise PeerRefused(f"{where}: {error}") from error
        except RpcError as error:
            kind = PeerRefused if error.code in _REFUSALS else Transient
            raise kind(f"{where}: {error.message}") from error
        except (ChannelFailed, EvidenceUnavailable, PeerError) as error:
            text = str(error)
            raise Transient(text if where in text else f"{where}: {text}") from error

    async def _call_over_channel(self, address: Address, path: str, body: bytes, turn: Turn) -> bytes:
        channel = await connect(*address, label=JOIN_LABEL, attestation=self._side, peer_name=PEER)
        try:
            await self._require_control_plane(channel.peer)
            await turn()
            async with GrpcClient(channel.reader, channel.writer) as caller:
                return await caller.unary(path, body, ANSWER_SECONDS)
        finally:
            await channel.close()

    async def _require_control_plane(self, peer: AttestedPeer | None) -> None:
        """A worker that answered in place of a join service could choose the cluster that we join."""
        if peer is None:
            return
        try:
            require_control_plane_key(peer, await self._peers(), subject="join service", source="metadata")
        except EvidenceRefused:
            # Others may have the same token: it does not show that the peer is this machine.
            if peer.kind not in KINDS_WITH_KEY or peer.identity != await self._own_key():
                raise
