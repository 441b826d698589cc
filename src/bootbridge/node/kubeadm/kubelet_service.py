"""Who starts the kubelet: systemd, a command that the operator names, or somebody else altogether.

It is started before kubeadm and waits, restarting, for the configuration that kubeadm writes: that is how
every distribution's unit does it, and what a supervisor of one's own has to do, too.
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
    """The kubelet could not be started or stopped."""


class KubeletService(Protocol):
    """Both may be repeated."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


@dataclass(frozen=True)
class KubeletCommands:
    """By commands: systemd's, or an operator's own. An empty one does nothing."""

    starting: Sequence[str]
    stopping: Sequence[str] = ()

    async def start(self) -> None:
        await _commanded(self.starting)

    async def stop(self) -> None:
        await _commanded(self.stopping)


def systemd_kubelet(systemctl: str = "systemctl") -> KubeletCommands:
    """Enabled too: a node whose bootstrapper fails after a reboot is a node nevertheless."""
    return KubeletCommands((systemctl, "enable", "--now", UNIT), (systemctl, "stop", UNIT))


def unmanaged_kubelet() -> KubeletCommands:
    """Somebody else starts it when its configuration appears, as the lab does."""
    return KubeletCommands(())


async def _commanded(argv: Sequence[str]) -> None:
    if argv:
        try:
            await run_command(argv, seconds=START_SECONDS)
        except CommandFailed as error:
            raise KubeletFailed(str(error)) from None
