"""Runs `bootbridge up|down|status` in a separate process, with loopback as the node's address.

    python -m tests.support.bootstrap_driver <command> [flags]

With BOOTBRIDGE_CRASH_AT=N it gets SIGKILL after the N-th change of the node or the cluster, with
BOOTBRIDGE_INTERRUPT_AT=N SIGINT.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

from bootbridge.cli import install_flags, status, up
from bootbridge.cli.main import main as cli_main
from bootbridge.common.host import Host
from bootbridge.kube.blocking_client import ClusterClient

CHANGES = (
    (Host, ("write", "make_directory", "remove", "remove_directory", "remove_tree")),
    (ClusterClient, ("apply", "delete", "merge")),
)


def _signal_after(count: int, number: signal.Signals) -> None:
    done = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def act(*words: Any, **flags: Any) -> Any:
            nonlocal done
            result = change(*words, **flags)
            done += 1
            if done == count:
                os.kill(os.getpid(), number)
            return result

        return act

    for owner, names in CHANGES:
        for name in names:
            setattr(owner, name, counted(getattr(owner, name)))


def main(verb: str, *argv: str) -> int:
    for variable, number in (
        ("BOOTBRIDGE_CRASH_AT", signal.SIGKILL),
        ("BOOTBRIDGE_INTERRUPT_AT", signal.SIGINT),
    ):
        if at := os.environ.get(variable):
            _signal_after(int(at), number)
    here = (IPv4Address(os.environ.get("BOOTBRIDGE_ADDRESS", "127.0.0.1")),)
    for module in (install_flags, up, status):
        module.node_addresses = lambda plan: here  # type: ignore[attr-defined]
    return cli_main([verb, *argv])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
