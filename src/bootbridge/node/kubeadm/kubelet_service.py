"""Starts and stops the kubelet: with systemd, with configured commands, or not at all.

The kubelet is started before kubeadm and restarts until kubeadm has written its configuration, as in the
systemd units of all distributions. Configured commands must behave in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bootbridge.common.failures import Transient
from bootbridge.node.kubeadm.commands import CommandFailed, run_command

UNIT: Final = "kubelet.service"
START_SECONDS: Final = 90.0


class KubeletFailed(Transient):
    """The start or stop command failed."""


class KubeletService(Protocol):
    """Both methods may be repeated."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


@dataclass(frozen=True)
class KubeletCommands:
    """An empty command does nothing."""

    start_command: Sequence[str]
    stop_command: Sequence[str] = ()

    async def start(self) -> None:
        await _run(self.start_command)

    async def stop(self) -> None:
        await _run(self.stop_command)


def systemd_kubelet(systemctl: str = "systemctl") -> KubeletCommands:
    """Enables the unit too: after a reboot the node must run even if `bootbridge node run` fails."""
    return KubeletCommands((systemctl, "enable", "--now", UNIT), (systemctl, "stop", UNIT))


def unmanaged_kubelet() -> KubeletCommands:
    """For a kubelet that another program starts when its configuration appears, as in the lab."""
    return KubeletCommands(())


async def _run(argv: Sequence[str]) -> None:
    if argv:
        try:
            await run_command(argv, seconds=START_SECONDS)
        except CommandFailed as error:
            raise KubeletFailed(str(error)) from None
