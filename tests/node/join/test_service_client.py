"""The client of join services over attested TLS: tickets, whose key is accepted, and what failures mean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from bootbridge.common.failures import PeerRefused, Transient
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.messages import (
    ISSUE_REJOIN_TICKET,
    ISSUE_TICKET,
    JOIN_LABEL,
    RejoinRequest,
    RejoinTicket,
    Ticket,
    TicketRequest,
)
from bootbridge.node.join.service_client import JoinServiceClient
from bootbridge.runtime.grpc import Handler, RpcError, Send, serve
from bootbridge.trust.attested.channel import Attestation, AttestedChannel, AttestedListener
from bootbridge.trust.evidence.token import TokenIssuer, TokenVerifier
from bootbridge.trust.evidence.tpm import TpmVerifier
from bootbridge.trust.measurement import MeasurementPolicy
from bootbridge.wire import grpc_messages as grpc
from tests.support.process_program import free_port
from tests.support.software_tpm import SoftwareTpm

SECRET = b"0123456789abcdef0123456789abcdef"
Open = Callable[..., Awaitable[tuple[str, int]]]


@pytest.fixture
async def open_service() -> AsyncIterator[Open]:
    """Starts join services on loopback with the given handlers."""
    listeners: list[AttestedListener] = []

    async def start(handlers: dict[str, Handler], token: bytes = SECRET) -> tuple[str, int]:
        async def converse(channel: AttestedChannel) -> None:
            await serve(channel.reader, channel.writer, handlers, stopping=channel.stopping)

        side = Attestation(verifiers=(TokenVerifier({"dev": token}),))
        listeners.append(
            await AttestedListener.open(
                "127.0.0.1", 0, label=JOIN_LABEL, attestation=lambda: side, handle=converse
            )
        )
        return "127.0.0.1", listeners[-1].port

    yield start
    for listener in listeners:
        await listener.stop()


def answering(answer: bytes | RpcError) -> Handler:
    async def handle(body: bytes, send: Send) -> None:
        if isinstance(answer, RpcError):
            raise answer
        await send(answer)

    return handle


def calls() -> JoinServiceClient:
    return JoinServiceClient(Attestation(TokenIssuer("dev", SECRET)))


async def test_tickets_and_rejoin_tickets_are_returned(open_service: Open) -> None:
    address = await open_service(
        {
            ISSUE_TICKET: answering(Ticket(node_name="worker-0").encode()),
            ISSUE_REJOIN_TICKET: answering(RejoinTicket(node_name="worker-1").encode()),
        }
    )
    assert (await calls().request_ticket(address, TicketRequest("worker-0"))).node_name == "worker-0"
    assert (await calls().request_rejoin_ticket(address, RejoinRequest("worker-1"))).node_name == "worker-1"


async def test_a_request_waits_for_its_turn_on_an_open_connection(open_service: Open) -> None:
    asked: list[bytes] = []

    async def ticket(body: bytes, send: Send) -> None:
        asked.append(body)
        await send(Ticket(node_name="worker-0").encode())

    address = await open_service({ISSUE_TICKET: ticket})
    stands, mine = asyncio.Event(), asyncio.Event()

    async def turn() -> None:
        stands.set()
        await mine.wait()
        assert not asked

    answer = asyncio.ensure_future(calls().request_ticket(address, TicketRequest("worker-0"), turn))
    await stands.wait()
    mine.set()
    assert (await answer).node_name == "worker-0"
    assert len(asked) == 1


@dataclass
class Answering:
    """A machine with valid evidence that answers as a join service."""

    tpm: SoftwareTpm
    port: int
    asked: list[bytes]

    async def ticket(self, *peers: Instance, own_key: str = "") -> Ticket:
        async def known() -> tuple[Instance, ...]:
            return peers

        async def own() -> str:
            return own_key

        demands = Attestation(
            verifiers=(TpmVerifier(MeasurementPolicy({}), trusted_keys=[self.tpm.identity]),)
        )
        calls = JoinServiceClient(demands, known, own)
        return await calls.request_ticket(("127.0.0.1", self.port), TicketRequest("worker-0"))


@pytest.fixture
async def answering_machine() -> AsyncIterator[Answering]:
    asked: list[bytes] = []

    async def ticket(body: bytes, send: Send) -> None:
        asked.append(body)
        await send(Ticket(node_name="worker-0").encode())

    async def converse(channel: AttestedChannel) -> None:
        await serve(channel.reader, channel.writer, {ISSUE_TICKET: ticket}, stopping=channel.stopping)

    tpm = SoftwareTpm()
    listener = await AttestedListener.open(
        "127.0.0.1", 0, label=JOIN_LABEL, attestation=lambda: Attestation(tpm), handle=converse
    )
    yield Answering(tpm, listener.port, asked)
    await listener.stop()


def listed(name: str, role: Role, identity: str) -> Instance:
    return Instance(name, role, (), "", identity)


OTHER_KEY = "tpm:sha256:" + "0" * 64


async def test_a_worker_that_acts_as_a_join_service_is_rejected(answering_machine: Answering) -> None:
    """Its evidence is valid, but its key is listed as a worker's."""
    key = answering_machine.tpm.identity
    with pytest.raises(PeerRefused, match="join service: has the key of machine-1, which is a worker"):
        await answering_machine.ticket(listed("machine-1", Role.WORKER, key))
    assert answering_machine.asked == []
    ticket = await answering_machine.ticket(listed("machine-1", Role.CONTROL_PLANE, key))
    assert ticket.node_name == "worker-0"


async def test_an_unlisted_key_is_rejected_if_control_plane_keys_are_listed(
    answering_machine: Answering,
) -> None:
    """Other machines may have valid evidence; the metadata lists the control planes."""
    with pytest.raises(PeerRefused, match="is not that of a control plane in metadata") as refused:
        await answering_machine.ticket(listed("machine-1", Role.CONTROL_PLANE, OTHER_KEY))
    assert answering_machine.tpm.identity in str(refused.value)
    assert answering_machine.asked == []


async def test_without_listed_control_plane_keys_valid_evidence_is_enough(
    answering_machine: Answering,
) -> None:
    assert await answering_machine.ticket(
        listed("machine-1", Role.CONTROL_PLANE, ""), listed("machine-2", Role.WORKER, OTHER_KEY)
    )


async def test_a_control_plane_accepts_its_own_join_service(answering_machine: Answering) -> None:
    """The metadata lists only the other instances."""
    other = listed("machine-1", Role.CONTROL_PLANE, OTHER_KEY)
    assert await answering_machine.ticket(other, own_key=answering_machine.tpm.identity)


@pytest.mark.parametrize("code", [grpc.PERMISSION_DENIED, grpc.INVALID_ARGUMENT])
async def test_a_rejection_is_a_refusal_with_its_reason(open_service: Open, code: int) -> None:
    address = await open_service({ISSUE_TICKET: answering(RpcError(code, "not in the policy"))})
    with pytest.raises(PeerRefused, match=f"127.0.0.1:{address[1]}: not in the policy"):
        await calls().request_ticket(address, TicketRequest("worker-0"))


@pytest.mark.parametrize("code", [grpc.UNAVAILABLE, grpc.FAILED_PRECONDITION, grpc.INTERNAL])
async def test_a_temporary_error_is_transient(open_service: Open, code: int) -> None:
    """For example another control plane is joining, or the API server is unreachable."""
    address = await open_service({ISSUE_TICKET: answering(RpcError(code, "later"))})
    with pytest.raises(Transient, match="later") as failed:
        await calls().request_ticket(address, TicketRequest("worker-0"))
    assert not isinstance(failed.value, PeerRefused)


async def test_rejected_evidence_is_a_refusal(open_service: Open) -> None:
    address = await open_service({}, token=b"another-token-of-the-same-length")
    with pytest.raises(PeerRefused, match="the join service refused our evidence"):
        await calls().request_ticket(address, TicketRequest("worker-0"))


async def test_an_unreachable_service_or_an_invalid_answer_is_transient(
    open_service: Open,
) -> None:
    closed = ("127.0.0.1", free_port())
    with pytest.raises(Transient, match=f"127.0.0.1:{closed[1]}.*"):
        await calls().request_ticket(closed, TicketRequest("worker-0"))
    address = await open_service({ISSUE_TICKET: answering(b"\xff\xff")})
    with pytest.raises(Transient, match=f"127.0.0.1:{address[1]}"):
        await calls().request_ticket(address, TicketRequest("worker-0"))
