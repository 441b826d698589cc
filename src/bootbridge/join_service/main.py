"""Runs the join service: what it depends on is waited for, however long it takes, then it listens.

A pod that ended whenever something is not there yet would be restarted ever more slowly, and instances would
wait for that instead of for what was missing.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import yaml

from bootbridge.common.backoff import Backoff
from bootbridge.common.files import read_file
from bootbridge.common.yaml_text import YAML_ERRORS
from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.join_api import node_paths
from bootbridge.join_api.messages import JOIN_LABEL, JOIN_PORT
from bootbridge.join_service import manifests
from bootbridge.join_service.audit import AuditLog, open_audit
from bootbridge.join_service.authorization import AttestedCaller
from bootbridge.join_service.control_plane_files import ControlPlaneFiles
from bootbridge.join_service.csr_approver import CsrApprover
from bootbridge.join_service.inventory import SNAPSHOT_SECONDS_MAX
from bootbridge.join_service.measurement_secret import SECRET_NAME, MeasurementSecret
from bootbridge.join_service.policy_watch import PolicyWatch
from bootbridge.join_service.service import TICKETS_IN_PROGRESS_MAX, JoinService
from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.client import KubeClient
from bootbridge.kube.kinds import SECRET
from bootbridge.kube.kubeconfig import load_access
from bootbridge.kube.objects import Ref, get_object
from bootbridge.runtime import grpc, logs
from bootbridge.runtime.admin_http import AdminRequest, AdminResponse, AdminServer
from bootbridge.runtime.event_loop import StopSignals
from bootbridge.runtime.process_tuning import reduce_memory_use
from bootbridge.runtime.tasks import spawn
from bootbridge.trust.attested.channel import Attestation, AttestedChannel, AttestedListener
from bootbridge.trust.evidence import Issuer
from bootbridge.trust.evidence.configuration import issuer_from

PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 15.0
# Evidence tells what a machine was when it called. A channel that is kept would tell it for ever, also of one
# that has been locked since, or that the policy has stopped trusting.
CHANNEL_SECONDS_MAX: Final = 60.0

Value = TypeVar("Value")


@dataclass(frozen=True)
class JoinServiceOptions:
    """As the flags of `bootbridge join-service` say."""

    kubeconfig: str = ""  # empty: the cluster that this process runs in
    namespace: str = manifests.NAMESPACE
    host: str = ""  # empty: every address
    port: int = JOIN_PORT
    pki: Path = Path(node_paths.PKI)
    evidence: str = ""  # file; empty: callers are shown none
    audit_file: str = ""  # empty: standard output
    health_host: str = "127.0.0.1"
    health_port: int = 0  # 0: no such port


async def serve(options: JoinServiceOptions) -> int:
    """Until SIGTERM or SIGINT; the exit code."""
    reduce_memory_use()
    _use_all_descriptors()
    signals = StopSignals()
    running = spawn(run(options), "join service", awaited=True)
    asked = spawn(signals.stop_requested(), "wait for a signal")
    await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if running.done():
        await running  # it never ends by itself but for an error
    running.cancel()
    await asyncio.wait({running})
    return 0


async def run(
    options: JoinServiceOptions,
    *,
    on_listening: Callable[[int], None] = lambda port: None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Until cancelled. What was given wrongly is an error at once; what is not there yet is waited for."""
    issuer = _issuer(options.evidence)
    audit = AuditLog(open_audit(options.audit_file) if options.audit_file else sys.stdout, clock)
    health = _Health()
    async with AsyncExitStack() as stack:
        if options.health_port:
            await health.server.start(options.health_host, options.health_port)
            stack.push_async_callback(health.server.close)
        access = await retry_until_available("the API server's address", lambda: _access(options.kubeconfig))
        client = KubeClient(access, qps=-1, idle_connections_max=TICKETS_IN_PROGRESS_MAX)
        stack.push_async_callback(client.aclose)
        watch = PolicyWatch(client, options.namespace, rng=random.Random(), clock=time.monotonic)
        following = spawn(watch.run(), "follow the join policy")
        stack.push_async_callback(_ended, following)
        approving = run_csr_approver(lambda: CsrApprover(client, audit, socket.gethostname()))
        stack.push_async_callback(_ended, spawn(approving, "approve kubelets' certificates"))
        files = ControlPlaneFiles(options.pki)
        await retry_until_available("the cluster's authority", lambda: _authority(files))
        measurement = await retry_until_available(
            "the measurement", lambda: _measurement(client, options.namespace)
        )
        await watch.first()  # and its inventory, so that nobody who is in it is refused
        stack.push_async_callback(_ended, spawn(_keep_fresh(watch), "keep the inventory fresh"))
        service = JoinService(
            client,
            options.namespace,
            watch.current,
            measurement,
            files,
            audit,
            clock,
            connections=lambda: listener.connections,
        )
        health.service = service
        listener = await AttestedListener.open(
            options.host,
            options.port,
            label=JOIN_LABEL,
            attestation=lambda: Attestation(issuer, watch.current().verifiers),
            handle=lambda channel: converse(service, channel),
            on_refused=audit.record_refused_evidence,
        )
        stack.push_async_callback(listener.stop)
        logs.event("join-service", logs.INFO, "listening", port=listener.port, pki=options.pki)
        on_listening(listener.port)
        await following


async def retry_until_available(what: str, attempt: Callable[[], Awaitable[Value]]) -> Value:
    """Try until it works; one line for each kind of trouble, not for each attempt."""
    failures, complaint = 0, ""
    while True:
        try:
            return await attempt()
        except BootbridgeError as error:
            if str(error) != complaint:
                complaint = str(error)
                logs.event("join-service", logs.WARNING, f"waiting for {what}", reason=error)
        longest = min(PAUSE_SECONDS_MIN * 2 ** min(failures, 10), PAUSE_SECONDS_MAX)
        failures += 1
        await asyncio.sleep(longest * random.uniform(0.5, 1.0))


async def run_csr_approver(fresh: Callable[[], CsrApprover]) -> None:
    """Tickets go on without it, and a kubelet that waits is approved when it is back."""
    backoff = Backoff(random.Random())
    while True:
        try:
            await fresh().run()
        except Exception as error:
            logs.event("join-service", logs.ERROR, "approving has failed, it begins anew", why=repr(error))
        await asyncio.sleep(backoff.seconds())


async def _keep_fresh(watch: PolicyWatch) -> None:
    """A machine that was enrolled a moment ago is known when it calls."""
    while True:
        await retry_until_available("the inventory", lambda: watch.current().inventory.listed())
        await asyncio.sleep(SNAPSHOT_SECONDS_MAX)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def converse(
    service: JoinService, channel: AttestedChannel, *, seconds: float = CHANNEL_SECONDS_MAX
) -> None:
    """One caller, until its connection ends or its evidence has grown old."""
    assert channel.peer is not None, "the policy always demands evidence"
    caller = AttestedCaller(channel.peer, channel.peer_address)
    with suppress(TimeoutError), service.present(caller) as welcome:
        if not welcome:
            logs.event("join-service", logs.WARNING, "one key has too many channels", peer=caller.address)
            return
        async with asyncio.timeout(seconds):
            await grpc.serve(
                channel.reader, channel.writer, service.handlers(caller), stopping=channel.stopping
            )


def _use_all_descriptors() -> None:
    """Whoever waits has one, and many may wait; systemd and containerd give 1024 to those who do not ask."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _access(kubeconfig: str) -> ClusterAccess:
    return load_access(kubeconfig)


async def _authority(files: ControlPlaneFiles) -> None:
    files.authority()


async def _measurement(client: KubeClient, namespace: str) -> MeasurementSecret:
    return MeasurementSecret.load((await client.send(get_object(Ref(SECRET, SECRET_NAME, namespace)))).body)


def _issuer(path: str) -> Issuer | None:
    if not path:
        return None
    try:
        document = yaml.safe_load(read_file(path, "--evidence"))
    except YAML_ERRORS:
        raise OperatorError("is neither JSON nor YAML", subject=path) from None
    return issuer_from(document, path)


class _Health:
    """Alive from the start, ready once tickets can be asked for."""

    def __init__(self) -> None:
        self.service: JoinService | None = None
        self.server = AdminServer(
            {"/healthz": lambda _: AdminResponse("ok"), "/readyz": self._ready, "/status": self._status}
        )

    def _ready(self, _request: AdminRequest) -> AdminResponse:
        return AdminResponse("ok") if self.service else AdminResponse("not listening yet", 503)

    def _status(self, _request: AdminRequest) -> AdminResponse:
        counts = {"issued": self.service.issued, "refused": self.service.refused} if self.service else {}
        return AdminResponse(json.dumps(counts) + "\n", content_type="application/json")
