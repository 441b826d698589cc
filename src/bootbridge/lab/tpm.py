"""A TPM 2.0 for each blank instance: swtpm, in the instance's own namespaces, gone when the instance is.

Its keys are kept in the instance's directory as a chip keeps them. Its registers begin at zero whenever it is
switched on, and so an instance whose namespaces are ended and made anew has been rebooted for its TPM, too.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bootbridge.lab.components import Components
from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import LabNode
from bootbridge.trust.evidence.tpm import TpmIssuer
from bootbridge.trust.tpm.device import TpmDevice

STATE: Final = "/var/lib/swtpm"
SOCKET: Final = "/run/swtpm/tpm.sock"
DEVICE: Final = f"unix:{SOCKET}"
# Registers of firmware and boot loader: swtpm knows of neither and leaves them at zero, so the policy does.
BOOT_REGISTERS: Final = (0, 4, 8, 9)


def start_tpm(lab: Lab, node: LabNode, components: Components) -> None:
    """Returns when it takes commands."""
    for directory in (STATE, SOCKET.rpartition("/")[0]):
        lab.file(node.name, directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    argv = [
        *(components["swtpm"], "socket", "--tpm2"),
        f"--tpmstate=dir={STATE},mode=0600",
        f"--server=type=unixio,path={SOCKET},mode=0600",
        # As firmware does it: started, with registers at zero.
        "--flags=not-need-init,startup-clear",
    ]
    lab.start(node.name, "swtpm", argv)
    lab.until(lab.file(node.name, SOCKET).exists, f"the TPM of {node.name} answers")


def device(lab: Lab, node: LabNode) -> TpmDevice:
    """The TPM of an instance, as this machine reaches it."""
    return TpmDevice(f"unix:{lab.file(node.name, SOCKET)}")


def identity(lab: Lab, node: LabNode) -> str:
    """The key that an instance's quotes are signed with, as policies name it."""
    return asyncio.run(TpmIssuer(device(lab, node)).identity())


def measure(lab: Lab, node: LabNode, register: int, data: bytes) -> None:
    """Change one of an instance's registers, as other software at boot would have."""
    asyncio.run(device(lab, node).use(lambda chip: chip.measure(register, data)))
