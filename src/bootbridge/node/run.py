"""`bootbridge node run` and `bootbridge node renew`: build the parts from the configuration and run them.

`run` → `_run_until_stopped` → `_become_node` → `build_supervisor(...).run()`; after the instance is a node,
the tunnel that an init has installed is removed when it is no longer needed.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from random import Random, SystemRandom

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Fatal
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from bootbridge.node.components.install import Installer
from bootbridge.node.configuration import NodeConfiguration
from bootbridge.node.init.assembly import build_init_server, build_log_buffer
from bootbridge.node.init.join_service_setup import JoinServiceInstaller
from bootbridge.node.init.log_buffer import LogBuffer
from bootbridge.node.init.tunnel_removal import remove_when_unneeded
from bootbridge.node.join.assembly import build_join_client, build_rejoin, build_serving_renewal
from bootbridge.node.join.flow import JoinFlow
from bootbridge.node.kubeadm.machine import KubeadmMachine
from bootbridge.node.kubeadm.run import Kubeadm
from bootbridge.node.lock.bootstrap_record import FileRecordStore, RecordStore, survives_reboot
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.node.lock.node_state import FileNodeStateStore
from bootbridge.node.supervisor import FINISHED, Supervisor
from bootbridge.runtime import logs, tasks
from bootbridge.runtime.concurrency import cancel_and_wait, run_unless
from bootbridge.runtime.event_loop import StopSignals
from bootbridge.trust.measurement import FileRegister


def run(configuration: NodeConfiguration) -> int:
    """Returns the exit code: 0 a node, 1 failed with advice in the log, 130 stopped before the lock."""
    return asyncio.run(_run_until_stopped(configuration))


async def _run_until_stopped(configuration: NodeConfiguration) -> int:
    stop = asyncio.Event()
    signals = tasks.spawn(_stop_on_signal(stop), "node: signals")
    try:
        code = await _become_node(configuration, stop)
        # After `_become_node` has released the run directory: waiting for the tunnel may take longer than
        # a certificate is valid, and `bootbridge node renew` needs the directory.
        if code == FINISHED:
            removal = remove_when_unneeded(
                Host(configuration.settings.root),
                configuration.settings.tunnel_marker,
                configuration.settings.tunnel_quiet_seconds,
            )
            await run_unless(stop.wait(), removal)
        return code
    finally:
        await cancel_and_wait(signals)


async def _stop_on_signal(stop: asyncio.Event) -> None:
    await StopSignals().stop_requested()
    logs.event("node", logs.INFO, "stop requested")
    stop.set()


async def _become_node(configuration: NodeConfiguration, stop: asyncio.Event) -> int:
    records = FileRecordStore.open(configuration.settings.run)
    log_buffer = build_log_buffer(configuration.kubelet_unit)
    logging.getLogger().addHandler(log_buffer)
    try:
        return await build_supervisor(configuration, records, log_buffer, SystemRandom()).run(stop)
    finally:
        logging.getLogger().removeHandler(log_buffer)
        records.close()


def build_supervisor(
    configuration: NodeConfiguration, records: RecordStore, log_buffer: LogBuffer, random: Random
) -> Supervisor:
    """Builds all parts without starting any; raises OperatorError if joinService.evidence is missing."""
    _warn_about_weak_settings(configuration)
    lock = NodeLock(records, configuration.register)
    state_store = FileNodeStateStore(configuration.settings.state)
    machine = _build_machine(configuration)
    join_flow = JoinFlow(lock, machine, state_store, partial(Backoff, random))
    return Supervisor(
        lock,
        state_store,
        build_init_server(configuration, lock, machine, state_store, log_buffer, random),
        build_join_client(configuration, lock, join_flow, random),
        join_flow,
        build_rejoin(configuration, lock, machine, random),
    )


def _build_machine(configuration: NodeConfiguration) -> KubeadmMachine:
    host = Host(configuration.settings.root)
    join_service = JoinServiceInstaller(
        host,
        configuration.issuer,
        configuration.settings.evidence,
        configuration.settings.join_service.port,
        configuration.settings.tunnel_marker,
    )
    kubeadm = Kubeadm(configuration.settings.kubeadm, host)
    return KubeadmMachine(host, kubeadm, configuration.kubelet, Installer(host), join_service.install)


def _warn_about_weak_settings(configuration: NodeConfiguration) -> None:
    paths = {"run": configuration.settings.run}
    if isinstance(configuration.register, FileRegister):
        paths["register"] = configuration.register.path
    for field, path in paths.items():
        if survives_reboot(path):
            effect = "a reboot neither deletes its secrets nor releases the node lock"
            logs.event("node", logs.WARNING, "path is not on tmpfs", field=field, path=path, effect=effect)
    if configuration.join_verifiers == ():
        effect = "any join service that answers is trusted"
        logs.event("node", logs.WARNING, "joinService.evidence is none", effect=effect)


def renew(configuration: NodeConfiguration, seconds: float) -> bool:
    """Renews the serving certificate if it is due; returns whether a valid one is in place."""
    return asyncio.run(renew_certificate(configuration, seconds))


async def renew_certificate(configuration: NodeConfiguration, seconds: float) -> bool:
    try:
        state = FileNodeStateStore(configuration.settings.state).load()
    except Fatal as failure:
        raise OperatorError(str(failure)) from None
    if state is None:
        hint = "run `bootbridge node run` first"
        raise OperatorError(
            "this instance is not a node", subject=str(configuration.settings.state), hint=hint
        )
    # A running `bootbridge node run` renews the certificate itself; two processes could mix up their keys.
    records = FileRecordStore.open(configuration.settings.run)
    try:
        renewal = build_serving_renewal(configuration, _build_machine(configuration), SystemRandom())
        return not await renewal.is_due() or await renewal.renew_within(seconds, state.name)
    finally:
        records.close()
