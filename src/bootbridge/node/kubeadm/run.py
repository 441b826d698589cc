"""kubeadm's runs: each with its configuration in a file that only root reads, and that is gone afterwards.

No secret is ever an argument: whoever may list processes could read it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from bootbridge.common.failures import Fatal, Transient
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.join_api import node_paths
from bootbridge.node.kubeadm.commands import CommandFailed, run_command
from bootbridge.node.ports import ProgressCallback
from bootbridge.node.stages import stages
from bootbridge.runtime import logs

PHASE_SECONDS: Final = 300.0  # preflight pulls images
RUN_SECONDS: Final = 900.0
RESET_SECONDS: Final = 180.0
ASK_SECONDS: Final = 20.0


class KubeadmFailed(Transient):
    """kubeadm said no, or nothing in time. A reset and another attempt may help."""


class Kubeadm:
    """One kubeadm, on one machine."""

    def __init__(self, program: str, host: Host) -> None:
        self._program = program
        self._host = host

    async def expect_version(self, wanted: str) -> None:
        """Fatal unless this kubeadm is of that minor release; it would refuse itself, but later.

        Another patch of it is what kubeadm allows: a fleet's images need not change in one moment.
        """
        found = await self._version()
        if _minor(found) != _minor(wanted):
            advice = f"bring kubeadm {wanted}, or ask for Kubernetes {found}"
            raise Fatal(f"this machine has kubeadm {found}, and {wanted} is wanted", advice=advice)
        if found != wanted:
            logs.event("node", logs.WARNING, "kubeadm is of another patch release", here=found, wanted=wanted)

    async def preflight(self, configuration: bytes, progress: ProgressCallback) -> None:
        await self._configured(
            ["init", "phase", "preflight"], configuration, "preflight", progress, PHASE_SECONDS
        )

    async def make_certificates(self, configuration: bytes, progress: ProgressCallback) -> None:
        await self._configured(
            ["init", "phase", "certs", "all"], configuration, "certs", progress, PHASE_SECONDS
        )

    async def init(self, configuration: bytes, progress: ProgressCallback) -> None:
        await self._configured(["init"], configuration, "init", progress, RUN_SECONDS)

    async def join(self, configuration: bytes, progress: ProgressCallback) -> None:
        await self._configured(["join"], configuration, "join", progress, RUN_SECONDS)

    async def reset(self, cri_socket: str, progress: ProgressCallback) -> None:
        words = ["reset", "--force", f"--cri-socket={cri_socket}"]
        await self._run(words, "reset", progress, RESET_SECONDS)

    async def _configured(
        self,
        words: Sequence[str],
        configuration: bytes,
        stage: str,
        progress: ProgressCallback,
        seconds: float,
    ) -> None:
        with self._configuration(configuration) as path:
            await self._run([*words, f"--config={path}"], stage, progress, seconds)

    async def _run(
        self, words: Sequence[str], stage: str, progress: ProgressCallback, seconds: float
    ) -> None:
        with stages(stage, progress) as told:
            try:
                await run_command([self._found(), *words], seconds=seconds, tell=told.line)
            except CommandFailed as error:
                raise KubeadmFailed(str(error)) from None

    async def _version(self) -> str:
        said: list[str] = []
        try:
            await run_command(
                [self._found(), "version", "--output=short"], seconds=ASK_SECONDS, tell=said.append
            )
        except CommandFailed as error:
            raise Fatal(str(error), advice="bring a kubeadm that runs on this machine") from None
        return said[-1] if said else ""

    def _found(self) -> str:
        """Looked for before each run: a component may have brought it since."""
        path = shutil.which(self._program)
        if path is None:
            advice = "bring it with the machine's image, or name it among the components"
            raise Fatal(f"there is no program {self._program}", advice=advice)
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
