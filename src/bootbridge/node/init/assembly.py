"""Builds the init server of an instance from its configuration."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

from bootbridge.common.backoff import Backoff
from bootbridge.join_api.policy import check_policy
from bootbridge.node.configuration import NodeConfiguration
from bootbridge.node.init.flow import InitFlow
from bootbridge.node.init.listener import open_init_listener
from bootbridge.node.init.log_buffer import LogBuffer
from bootbridge.node.init.server import InitServer, InitSources
from bootbridge.node.kubeadm.commands import run_command
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.node.lock.node_state import NodeStateStore
from bootbridge.node.machine import Machine
from bootbridge.trust import init_secret

JOURNAL_LINES: Final = 500
JOURNAL_SECONDS: Final = 20.0


def build_init_server(
    configuration: NodeConfiguration,
    lock: NodeLock,
    machine: Machine,
    state_store: NodeStateStore,
    log_buffer: LogBuffer,
    random: Random,
) -> InitServer:
    open_listener = partial(
        open_init_listener,
        configuration.issuer,
        configuration.settings.init.host,
        configuration.settings.init.port,
    )
    sources = InitSources(
        configuration.metadata, init_secret.matches, check_policy, open_listener, log_buffer
    )
    flow = InitFlow(lock, machine, state_store, partial(Backoff, random))
    return InitServer(lock, sources, flow, random, configuration.settings.linger_seconds)


def build_log_buffer(kubelet_unit: str) -> LogBuffer:
    """Includes the kubelet's journal, since kubeadm only reports that it waited for the kubelet."""
    return LogBuffer({kubelet_unit: partial(_read_journal, kubelet_unit)} if kubelet_unit else {})


async def _read_journal(unit: str) -> bytes:
    lines: list[str] = []
    argv = ("journalctl", "--no-pager", f"--unit={unit}", f"--lines={JOURNAL_LINES}")
    await run_command(argv, seconds=JOURNAL_SECONDS, on_line=lines.append)
    return "\n".join(lines).encode() + b"\n"
