"""``bootbridge tpm-helper``: gives the join service the use of a TPM.

Not a command of ``bootbridge node``: it is in the image of the join service, without the bootstrapper.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bootbridge.cli.command import Command, ExitCode

_DESCRIPTION = """\
Runs beside the join service, in a container of its own, so that the container on the network needs no device
and no privileges. Relays the TPM commands of quotes and credential activation from a unix socket (mode 0600,
processes of the same user) and refuses all others. Opens no network socket."""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", metavar="TPM", default="/dev/tpmrm0", help="the TPM (%(default)s)")
    add("--socket", metavar="FILE", required=True, help="unix socket to listen on")


def _run(flags: argparse.Namespace) -> int:
    from bootbridge.runtime import logs
    from bootbridge.trust.tpm.relay import TpmRelay

    logs.configure("text", program="tpm-helper")
    relay = TpmRelay(flags.device, Path(flags.socket))
    with relay.listen() as listener:
        logs.event("tpm-helper", logs.INFO, "listening", socket=flags.socket, device=flags.device)
        relay.serve(listener)
    return ExitCode.OK


COMMAND = Command(
    _run,
    _DESCRIPTION,
    "{program} --device /dev/tpmrm0 --socket /run/bootbridge-tpm/tpm.sock",
    _add_flags,
    {ExitCode.ERROR: "the socket cannot be created", ExitCode.INTERRUPTED: "stopped"},
)
