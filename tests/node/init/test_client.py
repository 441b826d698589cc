"""The init client: retries after lost connections, and ends on an answer of the instance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from bootbridge.common.backoff import Backoff
from bootbridge.errors import OperatorError, PeerError
from bootbridge.node.init.client import InitClient, InitFailed, InitRefused, InstanceUnreachable
from bootbridge.node.init.messages import (
    ACKNOWLEDGE,
    INIT,
    InitEvent,
    InitFailure,
    InitRequest,
    InitSuccess,
    StageEvent,
)
from bootbridge.runtime.grpc import RpcError, Send, serve
from bootbridge.trust.attested.channel import AttestedChannel, ChannelFailed
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused
from bootbridge.trust.key_hierarchy import cluster_id
from bootbridge.trust.measurement import lock_value
from bootbridge.wire import grpc_messages as grpc

SECRET, SALT = bytes(range(32)), bytes(range(32, 64))
REQUEST = InitRequest(init_id="one", init_secret=b"s", measurement_secret=SECRET, measurement_salt=SALT)
SUCCESS = InitSuccess(b"kubeconfig", b"id")

Script = Callable[[InitRequest, Send], Awaitable[None]]


@dataclass
class RecordingReport:
    """Records what is reported."""

    stages: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    peers: list[AttestedPeer | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._heard: dict[str, asyncio.Event] = {}

    async def heard(self, stage: str) -> None:
        await self._heard.setdefault(stage, asyncio.Event()).wait()

    def waiting(self, reason: str) -> None:
        self.reasons.append(reason)

    def connected(self, peer: AttestedPeer | None) -> None:
        self.peers.append(peer)

    def stage(self, event: StageEvent) -> None:
        self.stages.append(f"{event.name} {event.state}")
        self._heard.setdefault(self.stages[-1], asyncio.Event()).set()


class Instance:
    """An init server on loopback: each connection follows the next script, then repeats the last one."""

    def __init__(self) -> None:
        self.requests: list[InitRequest] = []
        self.scripts: list[Script | Exception] = []
        self.peer: AttestedPeer | None = AttestedPeer("test", "sha256:00")
        self.report = RecordingReport()
        self.notes: list[str] = []
        self.full = False  # the user's disk
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._next_script

        async def handle(body: bytes, send: Send) -> None:
            self.requests.append(InitRequest.decode(body))
            await script(self.requests[-1], send)

        async def acknowledged(body: bytes, send: Send) -> None:
            self.notes.append("fetched")
            await send(b"")

        self._connections.add(writer)
        await serve(reader, writer, {INIT: handle, ACKNOWLEDGE: acknowledged})

    async def dial(self) -> AttestedChannel:
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        if isinstance(script, Exception):
            raise script
        self._next_script = script
        reader, writer = await asyncio.open_connection(*self._server.sockets[0].getsockname())
        return AttestedChannel(reader, writer, self.peer, "127.0.0.1")

    def hang_up(self) -> None:
        """Aborts the connection without closing TLS."""
        for writer in self._connections:
            writer.transport.abort()

    async def asked_by(self, *scripts: Script | Exception, reach_seconds: float = 30.0) -> InitSuccess:
        self.scripts = list(scripts)
        backoff = Backoff(Random(1), least=0, first=0.001, most=0.002)
        async with asyncio.timeout(20):
            client = InitClient(self.dial, REQUEST, self.report, backoff, reach_seconds, self.keep)
            return await client.run()

    def keep(self, success: InitSuccess) -> None:
        if self.full:
            raise OperatorError("no space left")
        self.notes.append("kept")


@pytest.fixture
async def instance() -> AsyncIterator[Instance]:
    playing = Instance()
    await playing.start()
    yield playing
    playing.close()


def saying(*events: InitEvent, then: RpcError | None = None) -> Script:
    async def script(request: InitRequest, send: Send) -> None:
        for event in events:
            await send(event.encode())
        if then is not None:
            raise then

    return script


def stage(number: int, name: str = "init", state: str = "started") -> InitEvent:
    return InitEvent(number, stage=StageEvent(name, state))


WELL = InitEvent(9, success=SUCCESS)


async def test_stages_are_reported_until_the_init_succeeds(instance: Instance) -> None:
    result = await instance.asked_by(saying(stage(1), stage(2, state="done"), WELL))
    assert result == SUCCESS
    assert instance.report.stages == ["init started", "init done"]
    assert instance.report.peers == [instance.peer]


async def test_the_result_is_acknowledged_after_it_was_stored(instance: Instance) -> None:
    await instance.asked_by(saying(WELL))
    assert instance.notes == ["kept", "fetched"]


async def test_a_result_that_cannot_be_stored_is_not_acknowledged(instance: Instance) -> None:
    instance.full = True
    with pytest.raises(OperatorError, match="no space left"):
        await instance.asked_by(saying(WELL))
    assert instance.notes == []


@pytest.mark.parametrize("may_retry", [False, True])
async def test_a_failure_is_acknowledged_unless_the_init_may_be_retried(
    instance: Instance, may_retry: bool
) -> None:
    with pytest.raises(InitFailed):
        await instance.asked_by(saying(InitEvent(1, failure=InitFailure("no", may_retry=may_retry))))
    assert instance.notes == ([] if may_retry else ["fetched"])


async def test_a_failure_is_final_and_includes_the_log(instance: Instance) -> None:
    failure = InitEvent(2, failure=InitFailure("kubeadm broke", "reboot it"))
    logs = [InitEvent(2, log=piece) for piece in (b"one\n", b"two\n")]
    with pytest.raises(InitFailed, match="kubeadm broke") as failed:
        await instance.asked_by(saying(stage(1), failure, *logs))
    assert (failed.value.advice, failed.value.log) == ("reboot it", b"one\ntwo\n")
    assert len(instance.requests) == 1


@pytest.mark.parametrize("after", [WELL, InitEvent(3, failure=InitFailure("again"))])
async def test_events_after_a_failure_are_ignored(instance: Instance, after: InitEvent) -> None:
    first = InitEvent(2, failure=InitFailure("first"))
    with pytest.raises(InitFailed, match="first"):
        await instance.asked_by(saying(first, after, InitEvent(3, log=b"log")))


async def test_a_failure_is_final_even_if_its_log_is_truncated(instance: Instance) -> None:
    events = InitEvent(1, failure=InitFailure("broke")), InitEvent(1, log=b"the beginning")
    with pytest.raises(InitFailed, match="broke") as failed:
        await instance.asked_by(saying(*events, then=RpcError(grpc.UNAVAILABLE, "cut off")))
    assert failed.value.log == b"the beginning"


async def test_after_a_lost_connection_the_client_resumes_after_the_last_event(instance: Instance) -> None:
    """With the same init ID and the number of the last event."""

    async def lost(request: InitRequest, send: Send) -> None:
        await send(stage(1).encode())
        await send(stage(2, "certs").encode())
        await instance.report.heard("certs started")
        instance.hang_up()

    assert await instance.asked_by(lost, saying(stage(3, "etcd"), WELL)) == SUCCESS
    assert [(each.init_id, each.seen) for each in instance.requests] == [("one", 0), ("one", 2)]
    assert instance.report.stages == ["init started", "certs started", "etcd started"]
    assert len(instance.report.reasons) == 1


async def test_the_client_waits_for_an_unreachable_instance(instance: Instance) -> None:
    booting = ChannelFailed("connecting to 10.0.0.5:9000: Connection refused")
    balancer = ChannelFailed("TLS with 10.0.0.5:9000: the peer closed the connection")
    assert await instance.asked_by(booting, balancer, saying(WELL)) == SUCCESS
    assert instance.report.reasons == [str(booting), str(balancer)]


@pytest.mark.parametrize("code", [grpc.UNAVAILABLE, grpc.RESOURCE_EXHAUSTED])
async def test_a_retryable_status_is_retried(instance: Instance, code: int) -> None:
    busy = saying(then=RpcError(code, "later"))
    assert await instance.asked_by(busy, saying(WELL)) == SUCCESS


async def test_a_temporary_failure_of_the_instance_is_retried(instance: Instance) -> None:
    """For example metadata that cannot be read; nothing was changed on the instance."""
    trouble = InitEvent(0, failure=InitFailure("no metadata", "try again", may_retry=True))
    assert (
        await instance.asked_by(saying(trouble, then=RpcError(grpc.UNAVAILABLE, "no metadata")), saying(WELL))
        == SUCCESS
    )


async def test_a_call_without_a_result_is_repeated(instance: Instance) -> None:
    assert await instance.asked_by(saying(), saying(WELL)) == SUCCESS


async def test_the_time_limit_for_an_unreachable_instance(instance: Instance) -> None:
    with pytest.raises(InstanceUnreachable, match="Connection refused") as unreachable:
        await instance.asked_by(ChannelFailed("Connection refused"), reach_seconds=0.02)
    assert not unreachable.value.request_sent
    with pytest.raises(InstanceUnreachable) as unreachable:
        await instance.asked_by(saying(then=RpcError(grpc.UNAVAILABLE, "later")), reach_seconds=0.02)
    assert unreachable.value.request_sent


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (grpc.PERMISSION_DENIED, "--init-secret-file"),
        (grpc.FAILED_PRECONDITION, "--resume"),
        (grpc.UNIMPLEMENTED, "version"),
        (grpc.INTERNAL, ""),
        (grpc.UNKNOWN, ""),
    ],
)
async def test_a_rejection_is_final_and_has_advice(instance: Instance, code: int, advice: str) -> None:
    with pytest.raises(InitRefused, match="no") as refused:
        await instance.asked_by(saying(then=RpcError(code, "no")))
    assert advice in refused.value.advice
    assert len(instance.requests) == 1


async def test_rejected_evidence_is_final(instance: Instance) -> None:
    with pytest.raises(EvidenceRefused, match="PCR 4 is"):
        await instance.asked_by(EvidenceRefused("the instance's evidence was refused: PCR 4 is 00"))
    assert instance.requests == []


async def test_an_instance_locked_for_another_cluster_gets_no_request(instance: Instance) -> None:
    instance.peer = AttestedPeer("tpm", "sha256:00", {"pcr15": "ab" * 32})
    with pytest.raises(EvidenceRefused, match="locked for another cluster"):
        await instance.asked_by(saying(WELL))
    assert instance.requests == []


async def test_a_tpm_that_omits_pcr_15_gets_no_request(instance: Instance) -> None:
    instance.peer = AttestedPeer("tpm", "sha256:00", {})
    with pytest.raises(EvidenceRefused, match="evidence lacks PCR 15"):
        await instance.asked_by(saying(WELL))
    assert instance.requests == []


@pytest.mark.parametrize("register", [bytes(32), lock_value(cluster_id(SECRET, SALT))])
async def test_an_unlocked_instance_or_one_locked_for_this_cluster_gets_the_request(
    instance: Instance, register: bytes
) -> None:
    """After a lost connection it is locked by this init."""
    instance.peer = AttestedPeer("tpm", "sha256:00", {"pcr15": register.hex()})
    assert await instance.asked_by(saying(WELL)) == SUCCESS


@pytest.mark.parametrize("body", [b"\xff\xff", InitEvent(1).encode()])
async def test_an_invalid_message_of_the_instance_is_an_error(instance: Instance, body: bytes) -> None:
    async def script(request: InitRequest, send: Send) -> None:
        await send(body)

    with pytest.raises(PeerError):
        await instance.asked_by(script)
