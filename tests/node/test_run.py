"""A user and an instance, from nothing to a kubeconfig, with real TLS and evidence on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from cryptography import x509

from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from bootbridge.join_api.kubelet_certificate import KubeletCa, KubeletCsr
from bootbridge.join_api.messages import (
    ISSUE_REJOIN_TICKET,
    ISSUE_TICKET,
    JOIN_LABEL,
    RejoinRequest,
    RejoinTicket,
    Ticket,
    TicketRequest,
)
from bootbridge.node import run
from bootbridge.node.configuration import read_configuration
from bootbridge.node.init import tunnel, tunnel_removal
from bootbridge.node.init.log_buffer import LogBuffer
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.init.session import InitOptions, InitSession
from bootbridge.node.lock.bootstrap_record import FileRecordStore
from bootbridge.node.stages import ProgressCallback
from bootbridge.node.status import read_status
from bootbridge.node.supervisor import FATAL, FINISHED, INTERRUPTED
from bootbridge.runtime import tasks
from bootbridge.runtime.concurrency import cancel_and_wait
from bootbridge.runtime.grpc import RpcError, Send, serve
from bootbridge.trust.attested.channel import Attestation, AttestedChannel, AttestedListener
from bootbridge.trust.authority import Authority
from bootbridge.trust.evidence import AttestedPeer
from bootbridge.trust.evidence.configuration import verifiers_from
from bootbridge.wire import grpc_messages as grpc
from tests.node.kubeadm.examples import instance as first_instance
from tests.node.kubeadm.examples import spec
from tests.node.local_instance import TOKEN, LocalInstance, RecordingApiServer, by_authority

DEADLINE_SECONDS = 30.0
BOOTSTRAP_TOKEN = "abcdef.0123456789abcdef"
DONE = [
    "components",
    "preflight",
    "certs",
    "kubelet-certificate",
    "init",
    "etcd",
    "wait-control-plane",
    "api-server",
    "join-service",
]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[LocalInstance]:
    api = RecordingApiServer()
    yield LocalInstance(tmp_path, api)
    api.close()


@dataclass
class RecordingReport:
    """A user who remembers."""

    stages: list[tuple[str, str]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    peer: AttestedPeer | None = None
    success: tuple[bytes, str] | None = None
    failure: tuple[str, str, str] | None = None
    on_stage: asyncio.Event = field(default_factory=asyncio.Event)

    def waiting(self, reason: str) -> None:
        self.reasons.append(reason)

    def connected(self, peer: AttestedPeer | None) -> None:
        self.peer = peer

    def stage(self, event: StageEvent) -> None:
        self.stages.append((event.name, event.state))
        self.on_stage.set()

    def started(self, init_id: str) -> None: ...
    def tick(self) -> None: ...

    def succeeded(self, cluster_id: bytes, kubeconfig: str) -> None:
        self.success = (cluster_id, kubeconfig)

    def failed(self, reason: str, advice: str, log: str) -> None:
        self.failure = (reason, advice, log)


@dataclass
class Node:
    """`bootbridge node run`, as a task."""

    running: asyncio.Task[int]
    stop: asyncio.Event
    log_buffer: LogBuffer

    async def code(self) -> int:
        """Of its own accord; it need not wait for a user who might come back."""
        self.stop.set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.running


@asynccontextmanager
async def node_run(instance: LocalInstance) -> AsyncIterator[Node]:
    configuration = read_configuration(instance.configuration)
    records, log_buffer, stop = FileRecordStore.open(configuration.settings.run), LogBuffer(), asyncio.Event()
    root = logging.getLogger()
    root.addHandler(log_buffer)
    supervisor = run.build_supervisor(configuration, records, log_buffer, Random(1))
    running = tasks.spawn(supervisor.run(stop), "node run")
    try:
        yield Node(running, stop, log_buffer)
    finally:
        running.cancel()
        await asyncio.wait({running})
        root.removeHandler(log_buffer)
        records.close()


def options(instance: LocalInstance, **changes: Any) -> InitOptions:
    user = instance.user
    return replace(
        InitOptions(
            host="127.0.0.1",
            port=instance.port,
            spec=user / "spec.yaml",
            policy=user / "policy.yaml",
            init_secret=user / "init-secret",
            secrets=user / "secrets.json",
            kubeconfig=instance.kubeconfig,
            reach_seconds=DEADLINE_SECONDS,
        ),
        **changes,
    )


async def init(instance: LocalInstance, told: RecordingReport, **changes: Any) -> bool:
    async with asyncio.timeout(DEADLINE_SECONDS):
        await listening(instance)
        return await InitSession(options(instance, **changes), told).run()


async def listening(instance: LocalInstance) -> None:
    """The client waits by itself, but seconds at a time."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", instance.port)
        except OSError:
            await asyncio.sleep(0.005)
        else:
            writer.close()
            return


async def kubeadm_runs(instance: LocalInstance) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not instance.init_runs:  # noqa: ASYNC110 -- another process's doing
            await asyncio.sleep(0.01)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_an_init_makes_a_cluster_and_ends_both_sides(instance: LocalInstance) -> None:
    told = RecordingReport()
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, told), told.failure
        assert await node.code() == FINISHED
    assert told.peer is not None
    assert told.peer.kind == "x509"
    assert [name for name, state in told.stages if state == "done"] == DONE
    kubeconfig = yaml.safe_load(instance.kubeconfig.read_bytes())
    assert kubeconfig["clusters"][0]["cluster"]["server"] == f"http://127.0.0.1:{instance.api.port}"
    assert kubeconfig["users"][0]["user"]["token"] == TOKEN
    assert mode(instance.kubeconfig) == 0o600
    assert told.success is not None
    assert json.loads((instance.root / "state.json").read_text())["clusterID"] == told.success[0].hex()
    assert "DaemonSet/bootbridge-join-service" in instance.api.applied
    assert instance.api.removed == ["kubeadm:node-autoapprove-bootstrap"]
    assert not options(instance).record.exists()


async def test_what_others_need_to_join_is_in_the_new_cluster(instance: LocalInstance) -> None:
    """The user's policy with the cluster's facts, and a service that proves itself as this instance does."""
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, RecordingReport())
        await node.code()
    policy = json.loads(instance.api.applied["ConfigMap/bootbridge-join-policy"]["data"]["policy.json"])
    assert policy["cluster"]["kubernetesVersion"] == "v1.36.3"
    assert policy["cluster"]["apiServerEndpoint"] == f"127.0.0.1:{instance.api.port}"
    assert [each["name"] for each in policy["instances"]] == ["cp-0"]
    pod = instance.api.applied["DaemonSet/bootbridge-join-service"]["spec"]["template"]["spec"]
    mounted = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert {str(instance.root / "evidence.crt"), str(instance.root / "evidence.key")} <= mounted
    assert "Secret/bootbridge-measurement" in instance.api.applied


async def test_the_first_nodes_certificate_lasts_as_long_as_the_policy_says(instance: LocalInstance) -> None:
    instance.write_policy(by_authority(instance.authority), ticket={"certificateDays": 7})
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, RecordingReport())
        await node.code()
    pem = (instance.root / "var/lib/kubelet/pki/bootbridge-serving.pem").read_bytes()
    ends = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    assert timedelta(days=6) < ends - datetime.now(UTC) <= timedelta(days=7)


async def test_the_first_node_s_name_is_bound_to_its_own_key_before_anybody_can_ask_for_it(
    instance: LocalInstance,
) -> None:
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, RecordingReport())
        await node.code()
    applied = instance.api.applied
    assert applied["ConfigMap/bootbridge-node-cp-0"]["data"] == {"identity": instance.identity}
    order = list(applied)
    assert order.index("ConfigMap/bootbridge-node-cp-0") < order.index("DaemonSet/bootbridge-join-service")


async def test_what_is_left_behind_is_readable_for_its_owner_alone(instance: LocalInstance) -> None:
    instance.let_kubeadm_go_on()
    before = set(instance.folder.rglob("*"))
    async with node_run(instance) as node:
        assert await init(instance, RecordingReport())
        await node.code()
    new = {path for path in instance.folder.rglob("*") if path.is_file()} - before
    secrets = secrets_of(instance)
    holders = {path.name: mode(path) for path in new if any(each in path.read_bytes() for each in secrets)}
    assert {"admin.conf", "secrets.json"} <= set(holders)
    assert {name: found for name, found in holders.items() if found & 0o077} == {}


def secrets_of(instance: LocalInstance) -> list[bytes]:
    """All that must not be seen, as it is written in files and as it might be logged."""
    document = json.loads((instance.user / "secrets.json").read_text())
    return [instance.secret, TOKEN.encode(), document["key"].encode()]


async def test_a_wrong_secret_is_refused_without_logs_and_without_a_trace(instance: LocalInstance) -> None:
    told = RecordingReport()
    instance.write_wrong_secret()
    async with node_run(instance) as node:
        assert not await init(instance, told)
        status = await read_status(read_configuration(instance.configuration))
        assert (status.phase, status.lock, status.register) == ("waiting", "free", bytes(32))
        assert await node.code() == INTERRUPTED
    assert told.failure is not None
    reason, advice, log = told.failure
    assert "wrong init secret" in reason
    assert "--init-secret-file" in advice
    assert log == ""
    assert not instance.init_runs
    assert not instance.kubeconfig.exists()


async def test_an_instance_that_is_not_trusted_is_told_nothing(instance: LocalInstance) -> None:
    told = RecordingReport()
    instance.write_policy(by_authority(Authority.create("other machines")))
    async with node_run(instance):
        assert not await init(instance, told)
    assert told.failure is not None
    assert "evidence was refused" in told.failure[0]
    assert told.peer is None
    assert not instance.init_runs


async def test_a_worker_that_answers_in_a_control_planes_place_is_told_nothing(
    instance: LocalInstance,
) -> None:
    """Its evidence is as good as any machine's; only the policy knows that it is not the one."""
    told = RecordingReport()
    instance.write_policy(by_authority(instance.authority), instance.identity, role="worker")
    async with node_run(instance) as node:
        assert not await init(instance, told)
        assert await node.code() == INTERRUPTED
    assert told.failure is not None
    assert "instance: has the key of cp-0, which is a worker in --policy" in told.failure[0]
    assert told.peer is None


async def test_a_machine_whose_key_is_not_the_listed_one_is_told_nothing(instance: LocalInstance) -> None:
    """The authority has vouched for many machines; the policy says which of them are control planes."""
    told = RecordingReport()
    instance.write_policy(by_authority(instance.authority), "sha256:" + "0" * 64)
    async with node_run(instance) as node:
        assert not await init(instance, told)
        assert await node.code() == INTERRUPTED
    assert told.failure is not None
    assert f"key {instance.identity} is not that of a control plane in --policy" in told.failure[0]
    assert told.peer is None
    assert not instance.init_runs


async def test_a_second_init_is_refused_at_once_and_the_first_goes_on(instance: LocalInstance) -> None:
    first, second = RecordingReport(), RecordingReport()
    async with node_run(instance) as node:
        running = tasks.spawn(init(instance, first), "first")
        await kubeadm_runs(instance)
        assert not await init(instance, second, kubeconfig=instance.user / "second.conf")
        instance.let_kubeadm_go_on()
        assert await running
        assert await node.code() == FINISHED
    assert second.failure is not None
    assert "another init is running" in second.failure[0]


async def test_a_killed_connection_is_resumed_and_nothing_is_missed(instance: LocalInstance) -> None:
    """Between user and instance stands a relay that is cut while kubeadm runs."""
    told = RecordingReport()
    async with node_run(instance) as node, relay_to(instance.port) as relay:
        running = tasks.spawn(init(instance, told, port=relay.port), "init")
        await kubeadm_runs(instance)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while ("etcd", "started") not in told.stages:
                told.on_stage.clear()
                await told.on_stage.wait()
        relay.cut()
        instance.let_kubeadm_go_on()
        assert await running, told.failure
        assert await node.code() == FINISHED
    assert len(told.reasons) >= 1
    turns = [turn for turn in told.stages if turn[1] != "output"]
    assert len(turns) == len(set(turns))
    assert {state for _, state in turns} == {"started", "done"}
    assert len(turns) == 2 * len(DONE)


async def test_an_init_that_was_left_goes_on_and_the_same_command_watches_it_again(
    instance: LocalInstance,
) -> None:
    gone, back = RecordingReport(), RecordingReport()
    async with node_run(instance) as node:
        running = tasks.spawn(init(instance, gone), "init")
        await kubeadm_runs(instance)
        running.cancel()
        await asyncio.wait({running})
        instance.let_kubeadm_go_on()
        assert await init(instance, back), back.failure
        assert await node.code() == FINISHED
    assert ("preflight", "done") in back.stages
    assert instance.kubeconfig.exists()


async def test_a_secret_that_has_made_a_cluster_makes_no_other(
    instance: LocalInstance, caplog: pytest.LogCaptureFixture
) -> None:
    """The instance still waits for the user who left before the end; anybody else is told, on both sides."""
    again = RecordingReport()
    async with node_run(instance) as node:
        running = tasks.spawn(init(instance, RecordingReport()), "init")
        await kubeadm_runs(instance)
        running.cancel()
        await asyncio.wait({running})
        instance.let_kubeadm_go_on()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (await read_status(read_configuration(instance.configuration))).phase != "done":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        other = instance.user / "other.conf"
        assert not await init(instance, again, kubeconfig=other)
        assert await node.code() == FINISHED
    assert again.failure is not None
    assert "instance rejected the request: instance is already initialised" in again.failure[0]
    (told,) = [vars(each)["fields"] for each in caplog.records if each.message == "init rejected"]
    assert told == {"reason": "instance is already initialised"}
    assert not other.exists()
    assert instance.kubeadm_arguments.count(" init --config") == 1


async def test_a_failed_init_brings_reason_advice_and_a_log_without_secrets(instance: LocalInstance) -> None:
    told = RecordingReport()
    instance.let_kubeadm_fail()
    async with node_run(instance) as node:
        assert not await init(instance, told)
        assert await node.code() == FATAL
    assert told.failure is not None
    reason, advice, log = told.failure
    assert "the kubelet is not healthy" in reason
    assert "reboot" in advice
    path = options(instance).log
    assert (log, mode(path)) == (str(path), 0o600)
    text = path.read_bytes()
    assert b"joinService.evidence is none" in text, "the instance's own log lines"
    assert [each for each in secrets_of(instance) if each in text] == []


def test_a_node_does_not_start_until_it_is_said_whom_to_believe(instance: LocalInstance) -> None:
    """A join service that proves nothing would be handed this machine, by default."""
    instance.configure(joinService={})
    with pytest.raises(
        OperatorError, match=r"joinService\.evidence: required field missing .*`none` accepts any"
    ):
        run.run(read_configuration(instance.configuration))
    assert not instance.init_runs


async def test_a_worker_is_not_initialised_and_may_be_corrected(instance: LocalInstance) -> None:
    told = RecordingReport()
    instance.let_kubeadm_go_on()
    instance.write_metadata(role="worker")
    async with node_run(instance) as node:
        assert not await init(instance, told)
        assert told.failure is not None
        assert "role is worker" in told.failure[0]
        assert "nothing was changed" in told.failure[1]
        instance.write_metadata()
        assert await init(instance, RecordingReport())
        assert await node.code() == FINISHED


async def test_a_finished_node_says_so_and_starts_again_as_one(instance: LocalInstance) -> None:
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, RecordingReport())
        assert await node.code() == FINISHED
    status = await read_status(read_configuration(instance.configuration))
    assert (status.phase, status.lock, status.healthy) == ("done", "init", True)
    assert status.document["node"] == {"name": "cp-0", "role": "control-plane"}
    async with node_run(instance) as node:
        assert await node.code() == FINISHED
    assert instance.kubeadm_arguments.count(" init --config") == 1


# --- joining


@dataclass
class LocalJoinService:
    """Gives a worker's ticket to whoever is trusted; what it was asked is kept."""

    instance: LocalInstance
    refusal: str = ""
    # How long ago its certificates were made; each is good for an hour.
    age_seconds: float = 0.0
    measurement_secret: bytes = bytes(range(32))
    asked: list[TicketRequest] = field(default_factory=list)
    callers: list[AttestedPeer | None] = field(default_factory=list)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        pem = self.instance.authority.cert_pem.decode()
        verifiers = verifiers_from({"x509": {"cas": pem}}, "policy")
        listener = await AttestedListener.open(
            "127.0.0.1",
            0,
            label=JOIN_LABEL,
            attestation=lambda: Attestation(verifiers=verifiers),
            handle=self._converse,
        )
        try:
            yield listener.port
        finally:
            await listener.stop()

    async def _converse(self, channel: AttestedChannel) -> None:
        self.callers.append(channel.peer)
        handlers = {ISSUE_TICKET: self._ticket, ISSUE_REJOIN_TICKET: self._rejoin_ticket}
        await serve(channel.reader, channel.writer, handlers, stopping=channel.stopping)

    def _certificate(self, request: TicketRequest | RejoinRequest) -> bytes:
        folder = self.instance.folder / "cluster-ca"
        authority = KubeletCa((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())
        return authority.sign(
            KubeletCsr(request.certificate_request),
            request.node_name,
            (ip_address("127.0.0.1"),),
            now=time.time() - self.age_seconds,
            validity=timedelta(hours=1),
        )

    async def _rejoin_ticket(self, body: bytes, send: Send) -> None:
        request = RejoinRequest.decode(body)
        await send(RejoinTicket(request.node_name, self._certificate(request)).encode())

    async def _ticket(self, body: bytes, send: Send) -> None:
        request = TicketRequest.decode(body)
        self.asked.append(request)
        if self.refusal:
            raise RpcError(grpc.PERMISSION_DENIED, self.refusal)
        certificate = self._certificate(request)
        ticket = Ticket(
            node_name=request.node_name,
            kubernetes_version="v1.36.3",
            api_server_endpoint="127.0.0.1:6443",
            token=BOOTSTRAP_TOKEN,
            token_seconds=900,
            ca_certificate_hashes=("sha256:" + "00" * 32,),
            kubelet_certificate=certificate,
            measurement_secret=self.measurement_secret,
            measurement_salt=bytes(range(32, 64)),
            addresses=("127.0.0.1",),
            cri_socket="unix:///run/containerd/containerd.sock",
        )
        await send(ticket.encode())


async def test_an_instance_joins_by_itself(instance: LocalInstance) -> None:
    """It finds the join service by its metadata, proves itself, and becomes a node."""
    service = LocalJoinService(instance)
    async with service.listening() as port:
        instance.configure(joinService={"port": port, "evidence": "none"})
        instance.write_metadata(role="worker", loadBalancer="127.0.0.1:6443")
        async with node_run(instance) as node, asyncio.timeout(DEADLINE_SECONDS):
            assert await node.running == FINISHED
    assert [(each.node_name, each.control_plane) for each in service.asked] == [("cp-0", False)]
    assert service.callers[0] is not None
    assert json.loads((instance.root / "state.json").read_text())["role"] == "worker"
    assert mode(instance.root / "var/lib/kubelet/pki/bootbridge-serving.pem") == 0o600
    assert " join --config" in instance.kubeadm_arguments
    assert BOOTSTRAP_TOKEN not in instance.kubeadm_arguments


async def test_a_node_renews_its_serving_certificate_once_it_is_due(instance: LocalInstance) -> None:
    """`bootbridge node renew`, as a timer runs it: the node is not rebooted, and nothing else is touched."""
    service = LocalJoinService(instance, age_seconds=3000)
    pki = instance.root / "var/lib/kubelet/pki"
    async with service.listening() as port, asyncio.timeout(DEADLINE_SECONDS):
        instance.configure(joinService={"port": port, "evidence": "none"})
        instance.write_metadata(role="worker", loadBalancer="127.0.0.1")
        configuration = read_configuration(instance.configuration)
        with pytest.raises(OperatorError, match="this instance is not a node"):
            await run.renew_certificate(configuration, DEADLINE_SECONDS)
        async with node_run(instance) as node:
            assert await node.running == FINISHED
        old = (pki / "bootbridge-serving.pem").read_bytes()
        service.age_seconds = 0
        assert await run.renew_certificate(configuration, DEADLINE_SECONDS)
        new = (pki / "bootbridge-serving.pem").read_bytes()
        assert new != old
        service.refusal = "nobody asks for what is not due"
        assert await run.renew_certificate(configuration, DEADLINE_SECONDS)
    assert (pki / "bootbridge-serving.pem").read_bytes() == new
    assert mode(pki / "bootbridge-serving.pem") == 0o600
    assert instance.kubeadm_arguments.count(" join --config") == 1


async def test_a_bridge_that_is_waited_for_keeps_no_certificate_from_being_renewed(
    instance: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that never becomes Ready would let it wait until all of them have expired."""
    waiting = asyncio.Event()

    async def for_ever(host: Host, progress: ProgressCallback, *, quiet_seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    plan = tunnel.plan_for(spec(tunnel_image="registry.example/bootbridge:1"), first_instance())
    monkeypatch.setattr(tunnel_removal, "installed_plan", lambda host: plan)
    monkeypatch.setattr(tunnel_removal, "wait_until_unneeded", for_ever)
    service = LocalJoinService(instance, age_seconds=3000)
    async with service.listening() as port, asyncio.timeout(DEADLINE_SECONDS):
        instance.configure(joinService={"port": port, "evidence": "none"})
        instance.write_metadata(role="worker", loadBalancer="127.0.0.1")
        configuration = read_configuration(instance.configuration)
        configuration.settings.tunnel_marker.touch()
        running = tasks.spawn(run._run_until_stopped(configuration), "node run")
        await waiting.wait()
        service.age_seconds = 0
        assert await run.renew_certificate(configuration, DEADLINE_SECONDS)
        assert not running.done()
        await cancel_and_wait(running)


async def test_a_certificate_that_is_due_and_cannot_be_renewed_is_a_failure(instance: LocalInstance) -> None:
    service = LocalJoinService(instance, age_seconds=3000)
    async with service.listening() as port, asyncio.timeout(DEADLINE_SECONDS):
        instance.configure(joinService={"port": port, "evidence": "none"})
        instance.write_metadata(role="worker", loadBalancer="127.0.0.1")
        async with node_run(instance) as node:
            assert await node.running == FINISHED
    assert not await run.renew_certificate(read_configuration(instance.configuration), seconds=0.1)


async def test_a_refusal_is_logged_with_its_reason_and_an_init_is_still_possible(
    instance: LocalInstance, caplog: pytest.LogCaptureFixture
) -> None:
    service = LocalJoinService(instance, refusal="the policy does not know cp-0")
    instance.let_kubeadm_go_on()
    async with service.listening() as port:
        instance.configure(joinService={"port": port, "evidence": "none"})
        instance.write_metadata(loadBalancer="127.0.0.1")
        async with node_run(instance) as node:
            refused = await refusal(caplog)
            waiting = await read_status(read_configuration(instance.configuration))
            assert await init(instance, RecordingReport())
            assert await node.code() == FINISHED
    assert f"127.0.0.1:{port}: the policy does not know cp-0" in refused
    assert (waiting.phase, waiting.document["reason"]) == ("waiting", f"ticket refused: {refused}")
    assert f"last error   ticket refused: {refused}\n" in waiting.text
    assert mode(instance.root / "run/node/last-join-error") == 0o600
    assert (await read_status(read_configuration(instance.configuration))).document["reason"] == "", (
        "it is a node"
    )


async def refusal(caplog: pytest.LogCaptureFixture) -> str:
    """Wait until the instance says that it was refused; its reason."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            for record in caplog.records:
                if record.message == "ticket refused":
                    return str(vars(record)["fields"]["reason"])
            await asyncio.sleep(0.01)


async def test_a_join_service_that_proves_nothing_is_not_believed_where_proof_is_asked_for(
    instance: LocalInstance, caplog: pytest.LogCaptureFixture
) -> None:
    service = LocalJoinService(instance)
    evidence = {"x509": {"cas": instance.authority.cert_pem.decode()}}
    async with service.listening() as port:
        instance.configure(joinService={"port": port, "evidence": evidence})
        instance.write_metadata(role="worker", loadBalancer="127.0.0.1")
        async with node_run(instance) as node:
            refused = await refusal(caplog)
            assert await node.code() == INTERRUPTED
    assert service.asked == []
    assert "the join service's evidence was refused: no evidence presented, none available" in refused


# --- a line that can be cut


class Relay:
    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, family=socket.AF_INET)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def close(self) -> None:
        self._server.close()
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def relay_to(port: int) -> AsyncIterator[Relay]:
    relay = Relay(port)
    await relay.start()
    try:
        yield relay
    finally:
        relay.close()
