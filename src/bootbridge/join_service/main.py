"""Runs the join service: waits for its dependencies, without a limit, then listens.

If it exited for each missing dependency, the kubelet would restart it with increasing back-off, and instances
would wait for that instead.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from bootbridge.common import documents
from bootbridge.common.backoff import Backoff
from bootbridge.common.files import read_file
from bootbridge.errors import BootbridgeError
from bootbridge.join_api import kubeadm_defaults
from bootbridge.join_api.messages import JOIN_LABEL, JOIN_PORT
from bootbridge.join_service import manifests
from bootbridge.join_service.audit import AuditLog, open_audit
from bootbridge.join_service.authorization import AttestedCaller
from bootbridge.join_service.control_plane_files import ControlPlaneFiles
from bootbridge.join_service.csr_approver import CsrApprover
from bootbridge.join_service.eviction_watch import EvictionWatch
from bootbridge.join_service.inventory import SNAPSHOT_SECONDS_MAX
from bootbridge.join_service.measurement_secret import SECRET_NAME, MeasurementSecret
from bootbridge.join_service.name_bindings import STATE_NAMESPACE
from bootbridge.join_service.policy_watch import PolicyWatch
from bootbridge.join_service.service import TICKETS_IN_PROGRESS_MAX, JoinService
from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.client import KubeClient
from bootbridge.kube.kinds import SECRET
from bootbridge.kube.kubeconfig import NotInCluster, load_access
from bootbridge.kube.objects import Ref, get_object
from bootbridge.runtime import grpc, logs
from bootbridge.runtime.admin_http import AdminRequest, AdminResponse, AdminServer
from bootbridge.runtime.concurrency import cancel_and_wait
from bootbridge.runtime.event_loop import StopSignals
from bootbridge.runtime.process_tuning import raise_open_file_limit, reduce_memory_use
from bootbridge.runtime.tasks import spawn
from bootbridge.trust.attested.channel import AdmissionLimits, Attestation, AttestedChannel, AttestedListener
from bootbridge.trust.attested.refusal_log import RefusalLog
from bootbridge.trust.evidence import Issuer
from bootbridge.trust.evidence.configuration import issuer_from

PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 15.0
# Evidence describes a machine at the time of the handshake. A longer channel would outlive a later lock, or a
# policy that no longer accepts the machine.
CHANNEL_SECONDS_MAX: Final = 60.0

Value = TypeVar("Value")


@dataclass(frozen=True)
class JoinServiceOptions:
    """The flags of `bootbridge join-service`."""

    kubeconfig: str = ""  # empty: in-cluster configuration
    namespace: str = manifests.NAMESPACE
    host: str = ""  # empty: every address
    port: int = JOIN_PORT
    pki: Path = Path(kubeadm_defaults.PKI)
    evidence: str = ""  # file; empty: presents no evidence
    audit_file: str = ""  # empty: standard output
    health_host: str = "127.0.0.1"
    health_port: int = 0  # 0: disabled


async def serve(options: JoinServiceOptions) -> int:
    """Runs until SIGTERM or SIGINT; returns the exit code."""
    reduce_memory_use()
    raise_open_file_limit()  # each waiting connection needs a descriptor
    signals = StopSignals()
    running = spawn(run(options), "join service", awaited=True)
    asked = spawn(signals.stop_requested(), "wait for a signal")
    await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if running.done():
        await running  # raises: it ends only by an error
    running.cancel()
    await asyncio.wait({running})
    return 0


async def run(
    options: JoinServiceOptions,
    *,
    on_listening: Callable[[int], None] = lambda port: None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Runs until cancelled. Raises OperatorError for invalid options; waits for missing dependencies."""
    issuer = _issuer(options.evidence)
    lines = open_audit(options.audit_file, clock)
    audit = AuditLog(lines, clock)
    health = _Health(audit)
    async with AsyncExitStack() as stack:
        stack.callback(lines.flush)  # last: what the others cause is in it
        if options.health_port:
            await health.server.start(options.health_host, options.health_port)
            stack.push_async_callback(health.server.close)
        access = await retry_until_available("API server address", lambda: _access(options.kubeconfig))
        client = KubeClient(access, qps=-1, idle_connections_max=TICKETS_IN_PROGRESS_MAX)
        stack.push_async_callback(client.aclose)
        watch = PolicyWatch(client, options.namespace, rng=random.Random(), clock=time.monotonic)
        watching = spawn(watch.run(), "watch the join policy")
        stack.push_async_callback(cancel_and_wait, watching)
        approving = run_csr_approver(
            lambda: CsrApprover(client, audit, socket.gethostname(), STATE_NAMESPACE)
        )
        stack.push_async_callback(cancel_and_wait, spawn(approving, "approve kubelet CSRs"))
        files = ControlPlaneFiles(options.pki)
        await retry_until_available("cluster CA", lambda: _load_ca(files))
        measurement = await retry_until_available(
            "measurement secret", lambda: _read_measurement(client, options.namespace)
        )
        await watch.wait_for_policy()  # with its inventory, so that its machines are not refused
        stack.push_async_callback(cancel_and_wait, spawn(_refresh_inventory(watch), "refresh the inventory"))
        service = JoinService(
            client,
            STATE_NAMESPACE,
            watch.current,
            measurement,
            files,
            audit,
            clock,
            connections=lambda: listener.connections,
        )
        evictions = EvictionWatch(client, service.close_channels, rng=random.Random())
        stack.push_async_callback(cancel_and_wait, spawn(evictions.run(), "watch for evicted nodes"))
        listener = await AttestedListener.open(
            options.host,
            options.port,
            label=JOIN_LABEL,
            attestation=lambda: Attestation(issuer, watch.current().verifiers),
            handle=lambda channel: serve_channel(service, channel),
            limits=AdmissionLimits.for_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        )
        stack.push_async_callback(listener.stop)
        health.service, health.refusals = service, listener.refusals
        logs.event("join-service", logs.INFO, "listening", port=listener.port, pki=options.pki)
        on_listening(listener.port)
        await watching


async def retry_until_available(dependency: str, attempt: Callable[[], Awaitable[Value]]) -> Value:
    """Retries with back-off; logs each distinct error once."""
    failures, logged = 0, ""
    while True:
        try:
            return await attempt()
        except NotInCluster:
            raise
        except BootbridgeError as error:
            if str(error) != logged:
                logged = str(error)
                logs.event(
                    "join-service",
                    logs.WARNING,
                    "waiting for dependency",
                    dependency=dependency,
                    reason=error,
                )
        longest = min(PAUSE_SECONDS_MIN * 2 ** min(failures, 10), PAUSE_SECONDS_MAX)
        failures += 1
        await asyncio.sleep(longest * random.uniform(0.5, 1.0))


async def run_csr_approver(create: Callable[[], CsrApprover]) -> None:
    """Restarts it after errors: tickets do not depend on it, and kubelets wait for their approval."""
    backoff = Backoff(random.Random())
    while True:
        try:
            await create().run()
        except Exception as error:
            logs.event("join-service", logs.ERROR, "CSR approver failed", reason=repr(error))
        await asyncio.sleep(backoff.seconds())


async def _refresh_inventory(watch: PolicyWatch) -> None:
    """Keeps the snapshot current, so that evidence of newly enrolled machines is accepted."""
    while True:
        await retry_until_available("inventory", lambda: watch.current().inventory.snapshot())
        await asyncio.sleep(SNAPSHOT_SECONDS_MAX)


async def serve_channel(
    service: JoinService, channel: AttestedChannel, *, seconds: float = CHANNEL_SECONDS_MAX
) -> None:
    """Serves one caller until its channel ends, at most for `seconds`."""
    assert channel.peer is not None, "the policy always requires evidence"
    caller = AttestedCaller(channel.peer, channel.peer_address)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds) as limit:
            with service.count_channel(caller, limit) as accepted:
                if not accepted:
                    logs.event(
                        "join-service", logs.WARNING, "too many channels of one key", peer=caller.address
                    )
                    return
                await grpc.serve(
                    channel.reader, channel.writer, service.handlers(caller), stopping=channel.stopping
                )


async def _access(kubeconfig: str) -> ClusterAccess:
    return load_access(kubeconfig)


async def _load_ca(files: ControlPlaneFiles) -> None:
    files.ca()


async def _read_measurement(client: KubeClient, namespace: str) -> MeasurementSecret:
    return MeasurementSecret.load((await client.send(get_object(Ref(SECRET, SECRET_NAME, namespace)))).body)


def _issuer(path: str) -> Issuer | None:
    if not path:
        return None
    return issuer_from(documents.parse(read_file(path, "--evidence"), path), path)


class _Health:
    """/healthz is always ok, /readyz once the listener is open."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self.service: JoinService | None = None
        self.refusals: RefusalLog | None = None
        self.server = AdminServer(
            {"/healthz": lambda _: AdminResponse("ok"), "/readyz": self._ready, "/status": self._status}
        )

    def _ready(self, _request: AdminRequest) -> AdminResponse:
        return AdminResponse("ok") if self.service else AdminResponse("not listening", 503)

    def _status(self, _request: AdminRequest) -> AdminResponse:
        counts: dict[str, int] = {}
        if self.service and self.refusals:
            counts = {
                "issued": self.service.issued,
                "refused": self.service.refused,
                "evidenceRefused": self.refusals.refused,
                "logLinesDropped": self.refusals.dropped,
                "auditLinesDropped": self._audit.dropped,
                "auditLinesOmitted": self._audit.omitted,
            }
        return AdminResponse(json.dumps(counts) + "\n", content_type="application/json")
