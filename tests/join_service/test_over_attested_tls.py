"""Callers over real attested TLS, with quotes of TPMs; only the API server is in memory."""

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
from bootbridge.join_service.main import converse
from bootbridge.join_service.service import CHANNELS_PER_KEY_MAX
from bootbridge.runtime.grpc import GrpcClient, RpcError
from bootbridge.trust.attested.channel import Attestation, AttestedListener, connect
from bootbridge.trust.evidence import EvidenceRefused
from bootbridge.trust.evidence.configuration import verifiers_from
from bootbridge.trust.evidence.token import TokenIssuer
from bootbridge.wire import grpc_messages as grpc
from tests.join_service.environment import World, asking, csr
from tests.support.fake_clock import pass_time
from tests.support.software_tpm import SoftwareTpm

HOST = "127.0.0.1"
SECONDS = 20.0


class Site:
    """Machines with a TPM each, all enrolled, and the service that lets them in."""

    def __init__(self, folder: Path, machines: int) -> None:
        self.tpms = [SoftwareTpm() for _ in range(machines)]
        self.instances = tuple(
            Instance(f"worker-{number}", Role.WORKER, (ip_address(HOST),), "", tpm.identity)
            for number, tpm in enumerate(self.tpms)
        )
        self.world = World(folder, self.instances)
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
            handle=lambda channel: converse(self.world.service, channel, seconds=self.evidence_seconds),
            on_refused=self.world.service.audit.record_refused_evidence,
        )
        self.port = listener.port
        return listener

    async def audited(self) -> list[dict[str, Any]]:
        """The audit once there is something in it; the peer hears of a refusal a moment earlier."""
        async with asyncio.timeout(SECONDS):
            while not self.world.audit:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return self.world.audit

    async def ticket(
        self, number: int, request: TicketRequest | None = None, *, patience: float = SECONDS
    ) -> Ticket:
        return await self.ask(self.tpms[number], request or asking(self.instances[number]), patience)

    async def ask(self, tpm: SoftwareTpm, request: TicketRequest, patience: float = SECONDS) -> Ticket:
        channel = await connect(
            HOST, self.port, label=JOIN_LABEL, attestation=Attestation(tpm), timeout=patience
        )
        async with GrpcClient(channel.reader, channel.writer) as caller:
            return Ticket.decode(await caller.unary(ISSUE_TICKET, request.encode(), patience))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path, machines=50)
    listener = await site.open()
    yield site
    await listener.stop()


async def test_a_crowd_that_arrives_at_once_all_get_theirs(site: Site) -> None:
    tickets = await asyncio.gather(*(site.ticket(number) for number in range(50)))
    assert [each.node_name for each in tickets] == [f"worker-{number}" for number in range(50)]
    assert len({each.token for each in tickets}) == 50
    assert [line["outcome"] for line in site.world.audit] == ["issued"] * 50


@pytest.mark.slow
async def test_a_thousand_that_arrive_at_once_all_get_theirs_from_one_address(tmp_path: Path) -> None:
    """As behind one translated address: they wait for one another, and nobody is sent away."""
    site = Site(tmp_path, machines=1000)
    listener = await site.open()
    tickets = await asyncio.gather(*(site.ticket(number, patience=600.0) for number in range(1000)))
    assert [each.node_name for each in tickets] == [f"worker-{number}" for number in range(1000)]
    await listener.stop()


async def test_one_key_does_not_hold_the_channels_of_all(site: Site) -> None:
    """However many it opens, from wherever; who has another key is served."""
    channels = [
        await connect(HOST, site.port, label=JOIN_LABEL, attestation=Attestation(site.tpms[0]))
        for _ in range(CHANNELS_PER_KEY_MAX)
    ]
    with pytest.raises(RpcError) as refused:
        await site.ticket(0)
    assert refused.value.code == grpc.UNAVAILABLE
    assert (await site.ticket(1)).node_name == "worker-1"
    for channel in channels:
        await channel.close()


async def test_a_false_claim_is_refused_with_one_reason_on_both_sides(site: Site) -> None:
    with pytest.raises(RpcError) as refused:
        await site.ticket(0, TicketRequest("worker-1", False, csr("worker-1")))
    assert refused.value.code == grpc.PERMISSION_DENIED
    (line,) = site.world.audit
    assert line["reason"] == refused.value.message
    assert site.world.api.objects == {}


async def test_a_locked_machine_is_told_to_reboot(site: Site) -> None:
    site.tpms[0].measure(15, b"another cluster")
    with pytest.raises(RpcError, match=r"PCR 15 is .*reboot"):
        await site.ticket(0)


async def test_evidence_is_good_for_a_while_and_not_for_as_long_as_its_channel_is_kept(
    tmp_path: Path,
) -> None:
    """A machine could else be locked, or no longer be trusted, and still be given tickets."""
    site = Site(tmp_path, machines=1)
    # Less than what an idle connection is closed after.
    site.evidence_seconds = 10.0
    listener = await site.open()
    channel = await connect(HOST, site.port, label=JOIN_LABEL, attestation=Attestation(site.tpms[0]))
    refused = TicketRequest("worker-9", False, csr("worker-9")).encode()
    async with GrpcClient(channel.reader, channel.writer) as caller:
        with pytest.raises(RpcError) as failed:
            await caller.unary(ISSUE_TICKET, refused, SECONDS)
        assert failed.value.code == grpc.PERMISSION_DENIED, "it is listened to"
        pass_time(site.evidence_seconds)
        with pytest.raises(RpcError) as failed:
            await caller.unary(ISSUE_TICKET, refused, SECONDS)
        assert failed.value.code == grpc.UNAVAILABLE, "it has to prove itself anew"
    await listener.stop()


async def test_an_unknown_machine_gets_no_channel(site: Site) -> None:
    with pytest.raises(EvidenceRefused):
        await site.ask(SoftwareTpm(), asking(site.instances[0]))
    (line,) = await site.audited()
    assert (line["what"], line["outcome"], line["address"]) == ("evidence", "refused", HOST)
    assert line["reason"]
    assert site.world.api.requests == []


async def test_a_kind_of_evidence_that_is_not_accepted_is_audited(site: Site) -> None:
    with pytest.raises(EvidenceRefused, match=r"\(accepted: tpm\)"):
        await connect(
            HOST, site.port, label=JOIN_LABEL, attestation=Attestation(TokenIssuer("id", b"s" * 32))
        )
    (line,) = await site.audited()
    assert "(accepted: tpm)" in line["reason"]


async def test_what_is_audited_of_a_machine_is_what_it_proved(site: Site) -> None:
    await site.ticket(3)
    (line,) = site.world.audit
    assert (line["evidence"], line["identity"]) == ("tpm", site.tpms[3].identity)
    assert line["facts"]["pcr15"] == "00" * 32
    assert json.dumps(line).count(site.tpms[3].identity) == 1
