"""`bootbridge up|down|status` as a process of its own, on a node whose only address is loopback.

    python -m tests.support.bootstrap_driver <verb> [flags]

With BOOTBRIDGE_CRASH_AT=N it is killed, as by `kill -9`, right after the N-th thing that it did to
the node or the cluster; with BOOTBRIDGE_INTERRUPT_AT=N it gets a Ctrl-C there.
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

DEEDS = (
    (Host, ("write", "make_directory", "remove", "remove_directory", "remove_tree")),
    (ClusterClient, ("apply", "delete", "merge")),
)


def _signal_after(count: int, number: signal.Signals) -> None:
    done = 0

    def counted(deed: Callable[..., Any]) -> Callable[..., Any]:
        def act(*words: Any, **flags: Any) -> Any:
            nonlocal done
            result = deed(*words, **flags)
            done += 1
            if done == count:
                os.kill(os.getpid(), number)
            return result

        return act

    for owner, names in DEEDS:
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
