"""Installs components: downloads them, verifies their hashes and renames them to their paths.

A component that is already installed with the right hash is kept. An error that a retry cannot fix is Fatal:
a component that does not exist, or that has another hash.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import random
import ssl
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Fatal, Transient
from bootbridge.common.host import Host
from bootbridge.join_api.components import Component
from bootbridge.node.components.archive import BadArchive, unpack
from bootbridge.node.components.download import DownloadImpossible, DownloadInterrupted, download
from bootbridge.node.init.messages import OUTPUT, StageEvent
from bootbridge.node.stages import ProgressCallback, stages

STAGE: Final = "components"
MODE: Final = 0o755
INSTALL_SECONDS: Final = 900.0
_ALGORITHM: Final = "sha256"
_PREFIX: Final = f"{_ALGORITHM}:"
_ADVICE: Final = "correct the component in the cluster spec"


class ComponentUnavailable(Transient):
    """The download timed out."""


@dataclass(frozen=True)
class Installer:
    """`seconds` limits each component, including all retries and waits."""

    host: Host
    random: random.Random = field(default_factory=random.Random)
    seconds: float = INSTALL_SECONDS
    tls: ssl.SSLContext | None = None

    async def install(self, components: Iterable[Component], progress: ProgressCallback) -> None:
        with stages(STAGE, progress):
            for component in components:
                progress(StageEvent(STAGE, OUTPUT, component.install_path))
                await self._install(component, progress)

    async def _install(self, component: Component, progress: ProgressCallback) -> None:
        if faults := component.faults:
            raise Fatal(f"{component.install_path}: {'; '.join(faults)}", advice=_ADVICE)
        path = self.host.path(component.install_path)
        wanted = component.hash.removeprefix(_PREFIX).lower()
        if not component.extract and await asyncio.to_thread(_is_installed, path, wanted):
            return
        if not component.url:
            _require_present(component, path)
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            await self._fetch(component, path, wanted, progress)
        except OSError as error:
            advice = "free disk space, or make the path writable"
            raise Fatal(f"{component.install_path}: {error.strerror or error}", advice=advice) from error
        except (DownloadImpossible, BadArchive) as error:
            raise Fatal(f"{component.install_path}: {error}", advice=_ADVICE) from error

    async def _fetch(self, component: Component, path: Path, wanted: str, progress: ProgressCallback) -> None:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                await self._download_with_retries(component, file, progress)
                await asyncio.to_thread(_verify_and_sync, file, component, wanted)
            if component.extract:
                await asyncio.to_thread(unpack, Path(temporary), path)
            else:
                os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    async def _download_with_retries(
        self, component: Component, file: BinaryIO, progress: ProgressCallback
    ) -> None:
        """Backs off between attempts, because many machines may download from one server at once."""
        backoff, last = Backoff(self.random), ""
        try:
            async with asyncio.timeout(self.seconds):
                while True:
                    try:
                        file.seek(0)
                        file.truncate()
                        return await download(component.url, file, tls=self.tls)
                    except DownloadInterrupted as error:
                        last = str(error)
                        progress(StageEvent(STAGE, OUTPUT, f"{last}; retrying"))
                    await asyncio.sleep(backoff.seconds())
        except TimeoutError:
            problem = f"{component.install_path}: timed out after {self.seconds:g} s"
            raise ComponentUnavailable(f"{problem}: {last}" if last else problem) from None


def _is_installed(path: Path, wanted: str) -> bool:
    """Compares hashes; a component without a hash counts as missing."""
    if not wanted or not path.is_file():
        return False
    with path.open("rb") as file:
        found = hashlib.file_digest(file, _ALGORITHM).hexdigest()
    if found == wanted and not os.access(path, os.X_OK):
        path.chmod(MODE)
    return found == wanted


def _require_present(component: Component, path: Path) -> None:
    """For a component without a URL; a matching hash was checked before."""
    advice = "boot from a machine image that contains it, or add a url to the component"
    if component.hash and not component.extract:
        problem = "hash mismatch" if path.exists() else "file not found"
        raise Fatal(f"{component.install_path}: {problem}", advice=advice)
    if not path.exists():
        raise Fatal(f"{component.install_path}: file not found", advice=advice)


def _verify_and_sync(file: BinaryIO, component: Component, wanted: str) -> None:
    file.flush()
    if wanted:
        file.seek(0)
        found = hashlib.file_digest(file, _ALGORITHM).hexdigest()  # type: ignore[arg-type]
        if not hmac.compare_digest(found, wanted):
            problem = f"{component.install_path}: hash mismatch: got {_PREFIX}{found}, want {component.hash}"
            raise Fatal(problem, advice=_ADVICE)
    os.fchmod(file.fileno(), MODE)
    os.fsync(file.fileno())
