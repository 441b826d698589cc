"""Runs kubeadm, with its configuration in a temporary file that only root can read.

Secrets are never passed as arguments: every user who can list processes could read them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from bootbridge.common.failures import Fatal, Transient
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.node import node_paths
from bootbridge.node.kubeadm.commands import CommandFailed, run_command
from bootbridge.node.machine import NodeStillReady
from bootbridge.node.stages import ProgressCallback, stages
from bootbridge.runtime import logs

PHASE_SECONDS: Final = 300.0  # preflight pulls images
RUN_SECONDS: Final = 900.0
RESET_SECONDS: Final = 180.0
VERSION_SECONDS: Final = 20.0


class KubeadmFailed(Transient):
    """kubeadm failed or timed out. A reset and another attempt may succeed."""


# The end of kubeadm's message.
_NODE_IS_READY: Final = 'and status "Ready" already exists in the cluster'


class Kubeadm:
    def __init__(self, program: str, host: Host) -> None:
        self._program = program
        self._host = host

    async def require_version(self, wanted: str) -> None:
        """Raises Fatal unless kubeadm has the same minor version; kubeadm itself would fail later.

        Another patch version is allowed, as in kubeadm: machine images need not all change at once.
        """
        found = await self._version()
        if _minor(found) != _minor(wanted):
            advice = f"install kubeadm {wanted}, or set kubernetesVersion to {found}"
            raise Fatal(f"kubeadm: version is {found}, {wanted} is required", advice=advice)
        if found != wanted:
            logs.event("node", logs.WARNING, "kubeadm patch version differs", found=found, wanted=wanted)

    async def preflight(self, configuration: bytes, progress: ProgressCallback) -> None:
        await self._run_with_configuration(
            ["init", "phase", "preflight"], configuration, "preflight", progress, PHASE_SECONDS
        )

    async def make_certificates(self, configuration: bytes, progress: ProgressCallback) -> None:
        await self._run_with_configuration(
            ["init", "phase", "certs", "all"], configuration, "certs", progress, PHASE_SECONDS
        )

    async def init(self, configuration: bytes, progress: ProgressCallback) -> None:
        await self._run_with_configuration(["init"], configuration, "init", progress, RUN_SECONDS)

    async def join(self, configuration: bytes, progress: ProgressCallback) -> None:
        await self._run_with_configuration(["join"], configuration, "join", progress, RUN_SECONDS)

    async def reset(self, cri_socket: str, progress: ProgressCallback) -> None:
        arguments = ["reset", "--force", f"--cri-socket={cri_socket}"]
        await self._run(arguments, "reset", progress, RESET_SECONDS)

    async def _run_with_configuration(
        self,
        arguments: Sequence[str],
        configuration: bytes,
        stage: str,
        progress: ProgressCallback,
        seconds: float,
    ) -> None:
        with self._configuration(configuration) as path:
            await self._run([*arguments, f"--config={path}"], stage, progress, seconds)

    async def _run(
        self, arguments: Sequence[str], stage: str, progress: ProgressCallback, seconds: float
    ) -> None:
        with stages(stage, progress) as tracker:
            try:
                await run_command([self._program_path(), *arguments], seconds=seconds, on_line=tracker.line)
            except CommandFailed as error:
                reason = str(error)
                raise (NodeStillReady if _NODE_IS_READY in reason else KubeadmFailed)(reason) from None

    async def _version(self) -> str:
        output: list[str] = []
        try:
            await run_command(
                [self._program_path(), "version", "--output=short"],
                seconds=VERSION_SECONDS,
                on_line=output.append,
            )
        except CommandFailed as error:
            raise Fatal(str(error), advice="install a kubeadm that runs on this machine") from None
        return output[-1] if output else ""

    def _program_path(self) -> str:
        """Searched before each run: a component may have installed it since."""
        path = shutil.which(self._program)
        if path is None:
            advice = "add it to the machine image or to the components"
            raise Fatal(f"{self._program}: program not found", advice=advice)
        return path

    @contextmanager
    def _configuration(self, data: bytes) -> Iterator[str]:
        self._host.make_directory(node_paths.RUN, 0o700)
        self._host.write(node_paths.CONFIGURATION, Asset(data, 0o600))
        try:
            yield str(self._host.path(node_paths.CONFIGURATION))
        finally:
            self._host.remove(node_paths.CONFIGURATION)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
