"""Parts of the assembly by themselves: what a join service's answers mean, and the end of the bridge."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bootbridge.bootstrap.plan.plan import Plan
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
from bootbridge.join_service.authorization import identity_for_binding
from bootbridge.node import run
from bootbridge.node.configuration import NodeConfiguration, configuration_from
from bootbridge.node.init import join_service_setup, tunnel
from bootbridge.node.init.messages import INIT, INIT_LABEL
from bootbridge.node.join.service_client import JoinServiceClient
from bootbridge.node.own_identity import own_attestation
from bootbridge.node.ports import Admitted
from bootbridge.runtime.grpc import GrpcClient, Handler, RpcError, Send, serve
from bootbridge.trust.attested.channel import Attestation, AttestedChannel, AttestedListener, connect
from bootbridge.trust.evidence import AttestedPeer
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
    """A join service on loopback that answers by the given handlers."""
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


async def test_tickets_are_asked_for_and_given(open_service: Open) -> None:
    address = await open_service(
        {
            ISSUE_TICKET: answering(Ticket(node_name="worker-0").encode()),
            ISSUE_REJOIN_TICKET: answering(RejoinTicket(node_name="worker-1").encode()),
        }
    )
    assert (await calls().ticket(address, TicketRequest("worker-0"))).node_name == "worker-0"
    assert (await calls().rejoin_ticket(address, RejoinRequest("worker-1"))).node_name == "worker-1"


async def test_a_request_waits_for_its_turn_on_a_channel_that_stands(open_service: Open) -> None:
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

    answer = asyncio.ensure_future(calls().ticket(address, TicketRequest("worker-0"), turn))
    await stands.wait()
    mine.set()
    assert (await answer).node_name == "worker-0"
    assert len(asked) == 1


@dataclass
class Answering:
    """A machine with good evidence that answers as a join service, and who the metadata says it is."""

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
        return await calls.ticket(("127.0.0.1", self.port), TicketRequest("worker-0"))


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


OTHER_KEY = "sha256:" + "0" * 64


async def test_a_worker_in_a_join_services_place_is_not_believed(answering_machine: Answering) -> None:
    """Its evidence is as good as a control plane's; its key is listed as a worker's."""
    key = answering_machine.tpm.identity
    with pytest.raises(PeerRefused, match="the join service shows the key of machine-1, which is a worker"):
        await answering_machine.ticket(listed("machine-1", Role.WORKER, key))
    assert answering_machine.asked == []
    ticket = await answering_machine.ticket(listed("machine-1", Role.CONTROL_PLANE, key))
    assert ticket.node_name == "worker-0"


async def test_a_key_that_is_not_listed_is_not_a_join_services_where_control_planes_keys_are(
    answering_machine: Answering,
) -> None:
    """Any machine of the same maker has evidence as good as that; the metadata knows which are ours."""
    with pytest.raises(PeerRefused, match="the metadata lists no control plane with it") as refused:
        await answering_machine.ticket(listed("machine-1", Role.CONTROL_PLANE, OTHER_KEY))
    assert answering_machine.tpm.identity in str(refused.value)
    assert answering_machine.asked == []


async def test_where_no_control_planes_key_is_listed_the_evidence_decides(
    answering_machine: Answering,
) -> None:
    assert await answering_machine.ticket(
        listed("machine-1", Role.CONTROL_PLANE, ""), listed("machine-2", Role.WORKER, OTHER_KEY)
    )


async def test_a_control_plane_believes_its_own_join_service(answering_machine: Answering) -> None:
    """It is asked for a new certificate, and the metadata lists the others only."""
    other = listed("machine-1", Role.CONTROL_PLANE, OTHER_KEY)
    assert await answering_machine.ticket(other, own_key=answering_machine.tpm.identity)


@pytest.mark.parametrize("code", [grpc.PERMISSION_DENIED, grpc.INVALID_ARGUMENT])
async def test_a_no_is_a_refusal_with_its_reason(open_service: Open, code: int) -> None:
    address = await open_service({ISSUE_TICKET: answering(RpcError(code, "not in the policy"))})
    with pytest.raises(PeerRefused, match=f"127.0.0.1:{address[1]}: not in the policy"):
        await calls().ticket(address, TicketRequest("worker-0"))


@pytest.mark.parametrize("code", [grpc.UNAVAILABLE, grpc.FAILED_PRECONDITION, grpc.INTERNAL])
async def test_trouble_that_may_pass_is_no_refusal(open_service: Open, code: int) -> None:
    """Another control plane is joining, the API server is away: asked again soon."""
    address = await open_service({ISSUE_TICKET: answering(RpcError(code, "later"))})
    with pytest.raises(Transient, match="later") as failed:
        await calls().ticket(address, TicketRequest("worker-0"))
    assert not isinstance(failed.value, PeerRefused)


async def test_evidence_that_does_not_convince_is_a_refusal(open_service: Open) -> None:
    address = await open_service({}, token=b"another-token-of-the-same-length")
    with pytest.raises(PeerRefused, match="the join service refused our evidence"):
        await calls().ticket(address, TicketRequest("worker-0"))


async def test_a_service_that_is_not_there_or_talks_nonsense_may_come_to_its_senses(
    open_service: Open,
) -> None:
    nobody = ("127.0.0.1", free_port())
    with pytest.raises(Transient, match=f"127.0.0.1:{nobody[1]}.*"):
        await calls().ticket(nobody, TicketRequest("worker-0"))
    address = await open_service({ISSUE_TICKET: answering(b"\xff\xff")})
    with pytest.raises(Transient, match=f"127.0.0.1:{address[1]}"):
        await calls().ticket(address, TicketRequest("worker-0"))


# --- what the join service needs of the machine


@pytest.mark.parametrize(
    ("evidence", "paths"),
    [
        ({"tpm": {}}, ("/dev/tpmrm0",)),
        ({"tpm": None}, ("/dev/tpmrm0",)),
        ({"tpm": {"device": "unix:/run/swtpm/tpm.sock"}}, ("/run/swtpm/tpm.sock",)),
        ({"tpm": {"device": "tcp:127.0.0.1:2321"}}, ()),
        ({"x509": {"certificate": "/e.crt", "key": "/e.key"}}, ("/e.crt", "/e.key")),
        ({"token": {"file": "/token"}}, ("/token",)),
    ],
)
def test_the_join_service_is_given_what_its_evidence_needs(evidence: Any, paths: tuple[str, ...]) -> None:
    assert join_service_setup._paths_in(evidence) == paths


async def test_a_founder_is_bound_to_what_the_join_service_will_find_it_to_be() -> None:
    verifier = TokenVerifier({"dev": SECRET}).begin(bytes(32))
    found = verifier.verify_evidence(await TokenIssuer("dev", SECRET).issue(bytes(32)))
    shown = await own_attestation(TokenIssuer("dev", SECRET))
    assert isinstance(found, AttestedPeer)
    assert identity_for_binding(shown) == identity_for_binding(found) == "token:dev"


# --- the bridge


@pytest.fixture
def configuration(tmp_path: Path) -> NodeConfiguration:
    token = tmp_path / "token"
    token.write_text("dev." + SECRET.decode())
    token.chmod(0o600)
    return configuration_from(
        {
            "metadata": {"static": {"file": str(tmp_path / "instance.yaml")}},
            "evidence": {"token": {"file": str(token)}},
            "register": str(tmp_path / "register"),
            "root": str(tmp_path),
            "state": str(tmp_path / "state.json"),
        }
    )


class Bridge:
    """Stands in for `node.bridge`, whose own tests are elsewhere: what was asked of it, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.plan: Plan | None = Plan()
        self.failure: Exception | None = None
        monkeypatch.setattr(tunnel, "installed_plan", lambda host: self.plan)
        monkeypatch.setattr(tunnel, "wait_until_unneeded", self._wait_until_unneeded)
        monkeypatch.setattr(tunnel, "remove", self._remove)

    async def _wait_until_unneeded(self, host: object, progress: object, *, quiet_seconds: float) -> None:
        self.asked.append(f"wait for {quiet_seconds:.0f} s of quiet")
        if self.failure:
            raise self.failure

    async def _remove(self, host: object, plan: Plan, progress: object) -> Any:
        self.asked.append("take down")

        class Receipt:
            clean = True

        return Receipt()


@pytest.fixture
def laid(monkeypatch: pytest.MonkeyPatch) -> Bridge:
    return Bridge(monkeypatch)


async def test_the_bridge_that_an_init_laid_is_taken_down_in_time(
    configuration: NodeConfiguration, laid: Bridge
) -> None:
    configuration.tunnel_marker.touch()
    await run._remove_tunnel_when_unneeded(configuration)
    assert laid.asked == ["wait for 120 s of quiet", "take down"]
    assert not configuration.tunnel_marker.exists()


async def test_a_bridge_that_an_operator_laid_is_left_alone(
    configuration: NodeConfiguration, laid: Bridge
) -> None:
    await run._remove_tunnel_when_unneeded(configuration)
    assert laid.asked == []


async def test_a_bridge_that_was_taken_down_by_hand_is_not_looked_for_again(
    configuration: NodeConfiguration, laid: Bridge
) -> None:
    configuration.tunnel_marker.touch()
    laid.plan = None
    await run._remove_tunnel_when_unneeded(configuration)
    assert laid.asked == []
    assert not configuration.tunnel_marker.exists()


async def test_a_bridge_that_cannot_be_taken_down_is_tried_by_the_next_start(
    configuration: NodeConfiguration, laid: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    configuration.tunnel_marker.touch()
    laid.failure = Transient("no kubeconfig")
    await run._remove_tunnel_when_unneeded(configuration)
    assert configuration.tunnel_marker.exists()
    assert "run `bootbridge down`" in caplog.text


def test_a_configuration_shows_no_secret(configuration: NodeConfiguration) -> None:
    inline = replace(configuration, evidence={"token": {"file": SECRET.decode()}})
    assert SECRET.decode() not in repr(inline)
    assert json.dumps(SECRET.decode()) not in repr(configuration)


class SlowChip:
    """Evidence that takes its time, as a TPM's does."""

    kind = "token"

    def __init__(self) -> None:
        self._token = TokenIssuer("dev", SECRET)
        self.under_way = self.most = 0
        self.free = asyncio.Event()

    async def issue(self, statement: bytes) -> bytes:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.free.wait()
        self.under_way -= 1
        return await self._token.issue(statement)

    async def answer(self, statement: bytes, challenge: bytes) -> bytes:
        raise AssertionError("nobody asks")


async def test_a_crowd_at_the_door_does_not_keep_the_chip_from_the_join(
    configuration: NodeConfiguration,
) -> None:
    """Whoever reaches the port costs a quote; the instance's own join needs the same TPM."""
    chip = SlowChip()
    port = free_port()
    settings = replace(configuration, issuer=chip, init_host="127.0.0.1", init_port=port)
    listener = await run._door(settings, lambda source, admitted: {})
    at_once = run.INIT_LIMITS.per_source(run.INIT_LIMITS.handshakes)
    crowd = [asyncio.create_task(dialled(port)) for _ in range(at_once + 4)]
    async with asyncio.timeout(20):
        while chip.under_way < at_once:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        chip.free.set()
        for channel in await asyncio.gather(*crowd):
            await channel.close()
    await listener.stop()
    assert chip.most == at_once


async def dialled(port: int) -> AttestedChannel:
    demands = Attestation(verifiers=(TokenVerifier({"dev": SECRET}),))
    return await connect("127.0.0.1", port, label=INIT_LABEL, attestation=demands)


async def test_a_stranger_may_not_stay_at_the_door(
    configuration: NodeConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that never ends keeps a connection busy: all places could be held so, and no init be let in."""
    monkeypatch.setattr(run, "STRANGER_SECONDS_MAX", 0.05)

    async def init(body: bytes, send: Send) -> None:
        await asyncio.Event().wait()

    port = free_port()
    settings = replace(configuration, init_host="127.0.0.1", init_port=port)
    sources: list[str] = []

    def handlers(source: str, admitted: Admitted) -> dict[str, Handler]:
        sources.append(source)
        return {INIT: init}

    listener = await run._door(settings, handlers)
    channel = await dialled(port)
    async with GrpcClient(channel.reader, channel.writer) as caller:
        with pytest.raises(RpcError) as cut:
            await caller.unary(INIT, b"a guess", 20)
    assert cut.value.code == grpc.UNAVAILABLE
    assert sources == ["127.0.0.1"]
    await listener.stop()


async def test_whoever_has_shown_the_secret_may_stay_for_good() -> None:
    async with asyncio.timeout(run.STRANGER_SECONDS_MAX) as patience:
        await asyncio.sleep(0)
        run._be_patient(patience)
        assert patience.when() is None
