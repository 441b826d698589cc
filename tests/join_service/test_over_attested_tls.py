"""The join service over attested TLS with TPM quotes; only the API server is fake."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.messages import ISSUE_TICKET, JOIN_LABEL, Ticket, TicketRequest
from bootbridge.join_service.main import serve_channel
from bootbridge.join_service.service import CHANNELS_PER_KEY_MAX
from bootbridge.runtime.grpc import GrpcClient, RpcError
from bootbridge.trust.attested.channel import Attestation, AttestedListener, connect
from bootbridge.trust.evidence import EvidenceRefused
from bootbridge.trust.evidence.configuration import verifiers_from
from bootbridge.trust.evidence.token import TokenIssuer
from bootbridge.wire import grpc_messages as grpc
from tests.join_service.environment import Environment, csr, ticket_request
from tests.support.fake_clock import pass_time
from tests.support.software_tpm import SoftwareTpm

HOST = "127.0.0.1"
SECONDS = 20.0


class JoiningMachines:
    """Enrolled machines with a TPM each, and a join service."""

    def __init__(self, folder: Path, machines: int) -> None:
        self.tpms = [SoftwareTpm() for _ in range(machines)]
        self.instances = tuple(
            Instance(f"worker-{number}", Role.WORKER, (ip_address(HOST),), "", tpm.identity)
            for number, tpm in enumerate(self.tpms)
        )
        self.environment = Environment(folder, self.instances)
        self.port = 0
        self.evidence_seconds = SECONDS

    async def open(self) -> AttestedListener:
        trusted = {"tpm": {"trustedKeys": [each.identity for each in self.instances]}}
        side = Attestation(verifiers=verifiers_from(trusted, "evidence"))
        listener = await AttestedListener.open(
            HOST,
            0,
            label=JOIN_LABEL,
            attestation=lambda: side,
            handle=lambda channel: serve_channel(
                self.environment.service, channel, seconds=self.evidence_seconds
            ),
        )
        self.port = listener.port
        return listener

    async def logged(self, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
        """Waits for the line about refused evidence: the peer receives the refusal slightly earlier."""
        async with asyncio.timeout(SECONDS):
            while not (found := [each for each in caplog.records if each.message == "evidence refused"]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (record,) = found
        fields: dict[str, Any] = record.fields  # type: ignore[attr-defined]
        return fields

    async def ticket(
        self, number: int, request: TicketRequest | None = None, *, seconds: float = SECONDS
    ) -> Ticket:
        return await self.ask(self.tpms[number], request or ticket_request(self.instances[number]), seconds)

    async def ask(self, tpm: SoftwareTpm, request: TicketRequest, seconds: float = SECONDS) -> Ticket:
        channel = await connect(
            HOST, self.port, label=JOIN_LABEL, attestation=Attestation(tpm), timeout=seconds
        )
        async with GrpcClient(channel.reader, channel.writer) as caller:
            return Ticket.decode(await caller.unary(ISSUE_TICKET, request.encode(), seconds))


@pytest.fixture
async def machines(tmp_path: Path) -> AsyncIterator[JoiningMachines]:
    machines = JoiningMachines(tmp_path, machines=50)
    listener = await machines.open()
    yield machines
    await listener.stop()


async def test_50_concurrent_machines_get_tickets(machines: JoiningMachines) -> None:
    tickets = await asyncio.gather(*(machines.ticket(number) for number in range(50)))
    assert [each.node_name for each in tickets] == [f"worker-{number}" for number in range(50)]
    assert len({each.token for each in tickets}) == 50
    assert [line["outcome"] for line in machines.environment.audit] == ["issued"] * 50


@pytest.mark.slow
async def test_1000_concurrent_machines_behind_one_address_get_tickets(tmp_path: Path) -> None:
    """As behind a NAT: they are queued, and none is disconnected."""
    machines = JoiningMachines(tmp_path, machines=1000)
    listener = await machines.open()
    tickets = await asyncio.gather(*(machines.ticket(number, seconds=600.0) for number in range(1000)))
    assert [each.node_name for each in tickets] == [f"worker-{number}" for number in range(1000)]
    await listener.stop()


async def test_one_key_cannot_use_all_channels(machines: JoiningMachines) -> None:
    channels = [
        await connect(HOST, machines.port, label=JOIN_LABEL, attestation=Attestation(machines.tpms[0]))
        for _ in range(CHANNELS_PER_KEY_MAX)
    ]
    with pytest.raises(RpcError) as refused:
        await machines.ticket(0)
    assert refused.value.code == grpc.UNAVAILABLE
    assert (await machines.ticket(1)).node_name == "worker-1"
    for channel in channels:
        await channel.close()


async def test_a_refusal_has_the_same_reason_in_the_response_and_the_audit(machines: JoiningMachines) -> None:
    with pytest.raises(RpcError) as refused:
        await machines.ticket(0, TicketRequest("worker-1", False, csr("worker-1")))
    assert refused.value.code == grpc.PERMISSION_DENIED
    (line,) = machines.environment.audit
    assert line["reason"] == refused.value.message
    assert machines.environment.api.objects == {}


async def test_a_locked_machine_is_refused_with_the_advice_to_reboot(machines: JoiningMachines) -> None:
    machines.tpms[0].measure(15, b"another cluster")
    with pytest.raises(RpcError, match=r"PCR 15 is .*reboot"):
        await machines.ticket(0)


async def test_a_channel_ends_when_its_evidence_is_too_old(
    tmp_path: Path,
) -> None:
    """Otherwise a machine could get tickets after it was locked or removed from the policy."""
    machines = JoiningMachines(tmp_path, machines=1)
    # Shorter than the timeout of idle connections.
    machines.evidence_seconds = 10.0
    listener = await machines.open()
    channel = await connect(HOST, machines.port, label=JOIN_LABEL, attestation=Attestation(machines.tpms[0]))
    refused = TicketRequest("worker-9", False, csr("worker-9")).encode()
    async with GrpcClient(channel.reader, channel.writer) as caller:
        with pytest.raises(RpcError) as failed:
            await caller.unary(ISSUE_TICKET, refused, SECONDS)
        assert failed.value.code == grpc.PERMISSION_DENIED, "the channel is open"
        pass_time(machines.evidence_seconds)
        with pytest.raises(RpcError) as failed:
            await caller.unary(ISSUE_TICKET, refused, SECONDS)
        assert failed.value.code == grpc.UNAVAILABLE, "new evidence is required"
    await listener.stop()


async def test_the_channels_of_an_evicted_identity_end_at_once(machines: JoiningMachines) -> None:
    """Also one with a request in progress; the channels of others stay open."""
    service, refused = machines.environment.service, TicketRequest("x", False, csr("x")).encode()
    channels = [
        await connect(HOST, machines.port, label=JOIN_LABEL, attestation=Attestation(machines.tpms[number]))
        for number in (0, 0, 1)
    ]
    callers = [GrpcClient(channel.reader, channel.writer) for channel in channels]
    async with callers[0], callers[1], callers[2]:
        for caller in callers:
            with pytest.raises(RpcError, match="x"):
                await caller.unary(ISSUE_TICKET, refused, SECONDS)
        service.close_channels("nobody's")
        service.close_channels(machines.instances[0].identity)
        service.close_channels(machines.instances[0].identity)
        codes = []
        for caller in callers:
            with pytest.raises(RpcError) as failed:
                await caller.unary(ISSUE_TICKET, refused, SECONDS)
            codes.append(failed.value.code)
    assert codes == [grpc.UNAVAILABLE, grpc.UNAVAILABLE, grpc.PERMISSION_DENIED]


async def test_evidence_of_an_unknown_machine_is_refused_and_logged(
    machines: JoiningMachines, caplog: pytest.LogCaptureFixture
) -> None:
    """Not audited: any peer on the network can cause this."""
    with pytest.raises(EvidenceRefused):
        await machines.ask(SoftwareTpm(), ticket_request(machines.instances[0]))
    line = await machines.logged(caplog)
    assert line["peer"] == HOST
    assert "attestation key not enrolled" in line["reason"]
    assert machines.environment.audit == []
    assert machines.environment.api.calls == []


async def test_an_unaccepted_kind_of_evidence_is_logged(
    machines: JoiningMachines, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EvidenceRefused, match=r"\(accepted: tpm\)"):
        await connect(
            HOST, machines.port, label=JOIN_LABEL, attestation=Attestation(TokenIssuer("id", b"s" * 32))
        )
    assert "(accepted: tpm)" in (await machines.logged(caplog))["reason"]
    assert machines.environment.audit == []


async def test_the_audit_line_has_the_proven_facts(machines: JoiningMachines) -> None:
    await machines.ticket(3)
    (line,) = machines.environment.audit
    assert (line["evidence"], line["identity"]) == ("tpm", machines.tpms[3].identity)
    assert line["facts"]["pcr15"] == "00" * 32
    assert json.dumps(line).count(machines.tpms[3].identity) == 1
