"""A software TPM 2.0 (swtpm) for each blank instance, in the instance's namespaces.

Its keys are kept in the instance's directory. Its PCRs are zero after each start, so for the TPM a new start
of the instance's namespaces is a reboot.
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
# PCRs of firmware and boot loader: swtpm leaves them at zero, which is what the policy expects.
BOOT_REGISTERS: Final = (0, 4, 8, 9)


def start_tpm(lab: Lab, node: LabNode, components: Components) -> None:
    """Starts the TPM; returns when its socket exists."""
    for directory in (STATE, SOCKET.rpartition("/")[0]):
        lab.file(node.name, directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    argv = [
        *(components["swtpm"], "socket", "--tpm2"),
        f"--tpmstate=dir={STATE},mode=0600",
        f"--server=type=unixio,path={SOCKET},mode=0600",
        # Starts it as firmware does, with PCRs at zero.
        "--flags=not-need-init,startup-clear",
    ]
    lab.start(node.name, "swtpm", argv)
    lab.until(lab.file(node.name, SOCKET).exists, f"TPM of {node.name}")


def device(lab: Lab, node: LabNode) -> TpmDevice:
    """Returns the TPM of an instance, reachable from this machine."""
    return TpmDevice(f"unix:{lab.file(node.name, SOCKET)}")


def identity(lab: Lab, node: LabNode) -> str:
    """Returns the fingerprint of the key that signs an instance's quotes, as in a policy."""
    return asyncio.run(TpmIssuer(device(lab, node)).identity())


def measure(lab: Lab, node: LabNode, register: int, data: bytes) -> None:
    """Extends a PCR of an instance, as changed boot software would."""
    asyncio.run(device(lab, node).use(lambda chip: chip.measure(register, data)))
