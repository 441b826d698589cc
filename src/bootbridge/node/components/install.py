"""Puts components in place: fetched, checked by hash, and moved there whole; or found there already.

What does not pass by itself is Fatal: the operator named a component that is not to be had, or is another
than the one whose hash was named.
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
from bootbridge.node.ports import ProgressCallback
from bootbridge.node.stages import stages

STAGE: Final = "components"
MODE: Final = 0o755
INSTALL_SECONDS: Final = 900.0
_ALGORITHM: Final = "sha256"
_PREFIX: Final = f"{_ALGORITHM}:"
_ADVICE: Final = "correct the component in the cluster's specification"


class ComponentUnavailable(Transient):
    """Its source did not give it in time."""


@dataclass(frozen=True)
class Installer:
    """Installs on `host`; `seconds` is the limit for each component, all attempts and waits together."""

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
        if wrong := component.faults:
            raise Fatal(f"component {component.install_path}: {'; '.join(wrong)}", advice=_ADVICE)
        path = self.host.path(component.install_path)
        wanted = component.hash.removeprefix(_PREFIX).lower()
        if not component.extract and await asyncio.to_thread(_is_there, path, wanted):
            return
        if not component.url:
            _must_be_there(component, path)
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            await self._fetch(component, path, wanted, progress)
        except OSError as error:
            advice = "make room, or mend what keeps it from being written"
            said = f"{component.install_path}: {error.strerror or error}"
            raise Fatal(said, advice=advice) from error
        except (DownloadImpossible, BadArchive) as error:
            raise Fatal(f"{component.install_path}: {error}", advice=_ADVICE) from error

    async def _fetch(self, component: Component, path: Path, wanted: str, progress: ProgressCallback) -> None:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                await self._patiently(component, file, progress)
                await asyncio.to_thread(_finish, file, component, wanted)
            if component.extract:
                await asyncio.to_thread(unpack, Path(temporary), path)
            else:
                os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    async def _patiently(self, component: Component, file: BinaryIO, progress: ProgressCallback) -> None:
        """Again and again, at growing distances: a server that many machines ask at once needs air."""
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
                        progress(StageEvent(STAGE, OUTPUT, f"{last}; trying again"))
                    await asyncio.sleep(backoff.seconds())
        except TimeoutError:
            said = f"{component.install_path}: not there within {self.seconds:g} s"
            raise ComponentUnavailable(f"{said}: {last}" if last else said) from None


def _is_there(path: Path, wanted: str) -> bool:
    """The very file, by its hash; one without a hash is fetched anew."""
    if not wanted or not path.is_file():
        return False
    with path.open("rb") as file:
        found = hashlib.file_digest(file, _ALGORITHM).hexdigest()
    if found == wanted and not os.access(path, os.X_OK):
        path.chmod(MODE)
    return found == wanted


def _must_be_there(component: Component, path: Path) -> None:
    """One without a URL; that its hash matches was seen before, if it has one."""
    advice = "boot the machine from an image that brings it, or give the component a url"
    if component.hash and not component.extract:
        what = "has another hash" if path.exists() else "is not there"
        raise Fatal(f"{component.install_path} {what}", advice=advice)
    if not path.exists():
        raise Fatal(f"{component.install_path} is not there", advice=advice)


def _finish(file: BinaryIO, component: Component, wanted: str) -> None:
    file.flush()
    if wanted:
        file.seek(0)
        found = hashlib.file_digest(file, _ALGORITHM).hexdigest()  # type: ignore[arg-type]
        if not hmac.compare_digest(found, wanted):
            said = f"{component.install_path}: what came has the hash {_PREFIX}{found}, not {component.hash}"
            raise Fatal(said, advice=_ADVICE)
    os.fchmod(file.fileno(), MODE)
    os.fsync(file.fileno())
