"""An instance's calls to join services: one attested connection for each, and what their failures mean."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bootbridge.common.failures import PeerRefused, Transient
from bootbridge.errors import BootbridgeError, PeerError
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
from bootbridge.node.join import control_plane_keys
from bootbridge.node.ports import Address
from bootbridge.runtime.concurrency import Turn
from bootbridge.runtime.grpc import GrpcClient, RpcError
from bootbridge.trust.attested.channel import Attestation, ChannelFailed, connect
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused, EvidenceUnavailable
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.proto import Message

ANSWER_SECONDS: Final = 25.0
CALLED: Final = "the join service"
# An answer that only an operator can change; everything else may be gone by itself.
_SAID_NO: Final = (grpc.PERMISSION_DENIED, grpc.INVALID_ARGUMENT, grpc.UNAUTHENTICATED)

Answer = TypeVar("Answer", bound=Message)


async def nobody_known() -> tuple[Instance, ...]:
    return ()


async def no_key() -> str:
    return ""


async def at_once() -> None:
    """The turn of one who asks nobody else."""


class JoinServiceClient:
    """`ports.JoinService` by attested TLS; the side says what we show and what we demand.

    `peers` tells whose keys are known, `own_key` which is ours: a control plane may ask its own join service.
    """

    def __init__(
        self,
        side: Attestation,
        peers: Callable[[], Awaitable[tuple[Instance, ...]]] = nobody_known,
        own_key: Callable[[], Awaitable[str]] = no_key,
    ) -> None:
        self._side = side
        self._peers = peers
        self._own_key = own_key

    async def ticket(self, address: Address, request: TicketRequest, turn: Turn = at_once) -> Ticket:
        return await self._asked(address, ISSUE_TICKET, request, Ticket, turn)

    async def rejoin_ticket(
        self, address: Address, request: RejoinRequest, turn: Turn = at_once
    ) -> RejoinTicket:
        return await self._asked(address, ISSUE_REJOIN_TICKET, request, RejoinTicket, turn)

    async def _asked(
        self, address: Address, path: str, request: Message, answer: type[Answer], turn: Turn
    ) -> Answer:
        try:
            return answer.decode(await self._called(address, path, request.encode(), turn))
        except EvidenceRefused as error:
            raise PeerRefused(f"{_named(address)}: {error}") from error
        except RpcError as error:
            kind = PeerRefused if error.code in _SAID_NO else Transient
            raise kind(f"{_named(address)}: {error.message}") from error
        except (ChannelFailed, EvidenceUnavailable, PeerError) as error:
            raise Transient(_told(address, error)) from error

    async def _called(self, address: Address, path: str, body: bytes, turn: Turn) -> bytes:
        channel = await connect(*address, label=JOIN_LABEL, attestation=self._side, peer_name=CALLED)
        try:
            await self._refuse_others(channel.peer)
            await turn()
            async with GrpcClient(channel.reader, channel.writer) as caller:
                return await caller.unary(path, body, ANSWER_SECONDS)
        finally:
            await channel.close()

    async def _refuse_others(self, service: AttestedPeer | None) -> None:
        """Whoever else answers in a join service's place would choose the cluster that we become part of."""
        if service is None:
            return
        try:
            control_plane_keys.refuse_others(service, await self._peers(), called=CALLED, by="the metadata")
        except EvidenceRefused:
            if not service.identity or service.identity != await self._own_key():
                raise


def _named(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _told(address: Address, error: BootbridgeError) -> str:
    text = str(error)
    return text if _named(address) in text else f"{_named(address)}: {text}"
