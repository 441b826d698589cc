"""`bootbridge node run`: every part put together, from the configuration to the exit code."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from random import Random, SystemRandom
from typing import Final

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Fatal
from bootbridge.common.host import Host
from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.join_api.kubelet_certificate_request import new_request
from bootbridge.join_api.policy_check import check_policy
from bootbridge.node.components.install import Installer
from bootbridge.node.configuration import NodeConfiguration
from bootbridge.node.init import tunnel
from bootbridge.node.init.flow import InitFlow
from bootbridge.node.init.join_service_setup import JoinServiceInstaller
from bootbridge.node.init.log_buffer import LogBuffer
from bootbridge.node.init.messages import INIT_LABEL
from bootbridge.node.init.server import InitServer, InitSources
from bootbridge.node.join.client import JoinClient, JoinSources
from bootbridge.node.join.endpoints import join_endpoints
from bootbridge.node.join.flow import JoinFlow, log_stage
from bootbridge.node.join.last_error import LastJoinError
from bootbridge.node.join.rejoin import Rejoin
from bootbridge.node.join.service_client import JoinServiceClient
from bootbridge.node.join.serving_renewal import ServingRenewal
from bootbridge.node.kubeadm.commands import run_command
from bootbridge.node.kubeadm.machine import KubeadmMachine
from bootbridge.node.kubeadm.run import Kubeadm
from bootbridge.node.lock.bootstrap_record import FileRecordStore, RecordStore, outlives_a_reboot
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.node.lock.node_state import FileNodeStateStore
from bootbridge.node.own_identity import evidence_identity
from bootbridge.node.ports import HandlersFor, InitListener, Machine
from bootbridge.node.supervisor import FINISHED, Supervisor
from bootbridge.runtime import grpc, logs, tasks
from bootbridge.runtime.concurrency import cancel_and_wait, run_unless
from bootbridge.runtime.event_loop import StopSignals
from bootbridge.trust import init_secret
from bootbridge.trust.attested.admission_queue import source_of
from bootbridge.trust.attested.channel import AdmissionLimits, Attestation, AttestedChannel, AttestedListener
from bootbridge.trust.measurement import FileRegister

JOURNAL_LINES: Final = 500
JOURNAL_SECONDS: Final = 20.0
# Users are few, and whoever reaches the port costs a quote before having shown anything: a join that needs
# the same TPM must not wait behind a crowd, nor may requests of strangers fill the memory.
INIT_LIMITS: Final = AdmissionLimits(handshakes=8, channels=32, waiting=64, share=0.25)
INIT_CALLS_MAX: Final = 2
# For whoever has not shown the init secret; longer than the guesses before one's own take, also where
# all of them come from the same address.
STRANGER_SECONDS_MAX: Final = 90.0


def run(configuration: NodeConfiguration) -> int:
    """The exit code: 0 a node, 1 fatal with advice in the log, 130 stopped before the lock."""
    return asyncio.run(_run(configuration))


async def _run(configuration: NodeConfiguration) -> int:
    stop = asyncio.Event()
    asked = tasks.spawn(_asked_to(stop), "node: signals")
    try:
        code = await _bootstrapped(configuration, stop)
        # The directory is free by now: the bridge may stay for longer than a certificate lasts, and has its
        # own lock.
        if code == FINISHED:
            await run_unless(stop.wait(), _remove_tunnel_when_unneeded(configuration))
        return code
    finally:
        await cancel_and_wait(asked)


async def _bootstrapped(configuration: NodeConfiguration, stop: asyncio.Event) -> int:
    records = FileRecordStore.open(configuration.run)
    log_buffer = _logbook(configuration.kubelet_unit)
    logging.getLogger().addHandler(log_buffer)
    try:
        return await build_supervisor(configuration, records, log_buffer, SystemRandom()).run(stop)
    finally:
        logging.getLogger().removeHandler(log_buffer)
        records.close()


def renew(configuration: NodeConfiguration, seconds: float) -> bool:
    """`bootbridge node renew`: whether the serving certificate is good for a while."""
    return asyncio.run(_renewed(configuration, seconds))


async def _renewed(configuration: NodeConfiguration, seconds: float) -> bool:
    try:
        state = FileNodeStateStore(configuration.state).load()
    except Fatal as failure:
        raise OperatorError(str(failure)) from None
    if state is None:
        hint = "`bootbridge node run` makes it one"
        raise OperatorError("this instance is not a node", subject=str(configuration.state), hint=hint)
    # A node run that is at work renews it itself; two at once could mix their keys and certificates.
    records = FileRecordStore.open(configuration.run)
    try:
        renewal = _renewal(configuration, _machine(configuration), SystemRandom())
        return not await renewal.due() or await renewal.done_within(seconds, state.name)
    finally:
        records.close()


async def _asked_to(stop: asyncio.Event) -> None:
    await StopSignals().stop_requested()
    logs.event("node", logs.INFO, "asked to stop")
    stop.set()


def build_supervisor(
    configuration: NodeConfiguration, records: RecordStore, log_buffer: LogBuffer, random: Random
) -> Supervisor:
    """The whole node; nothing has begun yet. Raises OperatorError while it is not said whom to believe."""
    _warn(configuration)
    backoff = partial(Backoff, random)
    lock = NodeLock(records, configuration.register)
    state_store = FileNodeStateStore(configuration.state)
    machine = _machine(configuration)
    sources = _join_sources(configuration)
    answer = LastJoinError(configuration.run)
    answer.forget()
    join_flow = JoinFlow(lock, machine, state_store, backoff)
    init_sources = InitSources(
        configuration.metadata, init_secret.matches, check_policy, partial(_door, configuration), log_buffer
    )
    init_flow = InitFlow(lock, machine, state_store, backoff)
    return Supervisor(
        lock,
        state_store,
        InitServer(lock, init_sources, init_flow, random, configuration.linger_seconds),
        JoinClient(lock, sources, join_flow, random, answer.keep),
        join_flow,
        Rejoin(lock, machine, _renewal(configuration, machine, random), random),
    )


def _join_sources(configuration: NodeConfiguration, *, own: bool = False) -> JoinSources:
    """`own`: a control plane may ask its own join service, being a node already."""
    if configuration.join_verifiers is None:
        hint = "the control planes' keys or authority, as in docs/node.md; none: whoever answers is believed"
        raise OperatorError(
            "nothing says what a join service must prove", subject="joinService.evidence", hint=hint
        )
    metadata, issuer = configuration.metadata, configuration.issuer
    return JoinSources(
        metadata,
        partial(join_endpoints, metadata, configuration.join_port, own=own),
        JoinServiceClient(
            Attestation(issuer, configuration.join_verifiers),
            metadata.peers,
            partial(evidence_identity, issuer),
        ),
        new_request,
    )


def _renewal(configuration: NodeConfiguration, machine: Machine, random: Random) -> ServingRenewal:
    return ServingRenewal(machine, _join_sources(configuration, own=True), random)


def _warn(configuration: NodeConfiguration) -> None:
    own = {"run": configuration.run}
    if isinstance(configuration.register, FileRegister):
        own["register"] = configuration.register.path
    for field, path in own.items():
        if outlives_a_reboot(path):
            text = "is not on tmpfs: a reboot neither clears its secrets nor frees the node lock"
            logs.event("node", logs.WARNING, f"{field} {text}", path=path)
    if not configuration.join_verifiers:
        logs.event(
            "node",
            logs.WARNING,
            "joinService.evidence is none: whoever answers as a join service is believed",
        )


def _machine(configuration: NodeConfiguration) -> KubeadmMachine:
    host = Host(configuration.root)
    installer = JoinServiceInstaller(
        host,
        configuration.issuer,
        configuration.evidence,
        configuration.join_port,
        configuration.tunnel_marker,
    )
    return KubeadmMachine(
        host, Kubeadm(configuration.kubeadm, host), configuration.kubelet, Installer(host), installer
    )


def _logbook(unit: str) -> LogBuffer:
    return LogBuffer({unit: partial(_journal, unit)} if unit else {})


async def _journal(unit: str) -> bytes:
    """What the kubelet said, for a user whose init failed: kubeadm only says that it waited for it."""
    lines: list[str] = []
    argv = ("journalctl", "--no-pager", f"--unit={unit}", f"--lines={JOURNAL_LINES}")
    await run_command(argv, seconds=JOURNAL_SECONDS, tell=lines.append)
    return "\n".join(lines).encode() + b"\n"


async def _door(configuration: NodeConfiguration, handlers: HandlersFor) -> InitListener:
    """The port that users call: we prove what we are, they prove it by the init secret."""

    async def handle(channel: AttestedChannel) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(STRANGER_SECONDS_MAX) as patience:
                await grpc.serve(
                    channel.reader,
                    channel.writer,
                    handlers(source_of(channel.peer_address), partial(_be_patient, patience)),
                    concurrent_max=INIT_CALLS_MAX,
                    stopping=channel.stopping,
                )

    listener = await AttestedListener.open(
        configuration.init_host,
        configuration.init_port,
        label=INIT_LABEL,
        attestation=lambda: Attestation(configuration.issuer),
        handle=handle,
        limits=INIT_LIMITS,
    )
    logs.event("node", logs.INFO, "waiting for an init", port=listener.port)
    return listener


def _be_patient(patience: asyncio.Timeout) -> None:
    """With whoever may watch; at the very end of the time it is too late."""
    if not patience.expired():
        patience.reschedule(None)


async def _remove_tunnel_when_unneeded(configuration: NodeConfiguration) -> None:
    """The tunnel that an init of ours laid; one that an operator laid is the operator's."""
    host, mark = Host(configuration.root), configuration.tunnel_marker
    if not mark.exists() or tunnel.installed_plan(host) is None:
        mark.unlink(missing_ok=True)
        return
    logs.event("node", logs.INFO, "the bridge stays until all nodes are ready")
    try:
        await tunnel.wait_until_unneeded(host, log_stage, quiet_seconds=configuration.tunnel_quiet_seconds)
        # Somebody may have been quicker: an operator, or a process like this one that was started meanwhile.
        if (plan := tunnel.installed_plan(host)) is None:
            mark.unlink(missing_ok=True)
            return
        receipt = await tunnel.remove(host, plan, log_stage)
    except BootbridgeError as error:
        logs.event("node", logs.ERROR, "the bridge stays: run `bootbridge down`", why=str(error))
        return
    mark.unlink(missing_ok=True)
    logs.event("node", logs.INFO, "the bridge is taken down", receipt=plan.paths.receipt, clean=receipt.clean)
