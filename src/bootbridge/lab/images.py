"""The lab's images: built here, kept beside the lab, handed to each node's containerd. No registry."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bootbridge.bootstrap.files import Asset, write_file
from bootbridge.image import oci, recipes
from bootbridge.image.oci import Image
from bootbridge.lab.components import PAUSE, Components
from bootbridge.lab.control_plane import IMAGE as KUBERNETES_IMAGE
from bootbridge.lab.node_runtime import CONTAINERD_SOCKET, PAUSE_IMAGE
from bootbridge.lab.space import Space

TUNNEL_IMAGE = "localhost/bootbridge:lab"
WEBHOOK_IMAGE = "localhost/webhook:lab"
KONNECTIVITY_IMAGE = "localhost/konnectivity:lab"
IMPORT_SECONDS = 120.0
OUTDATED_SECONDS = 3600.0

_WEBHOOK_MODULES = (
    "__init__.py",
    "demo/__init__.py",
    "demo/webhook.py",
    "lab/__init__.py",
    "lab/archiver.py",
    "lab/extension_server.py",
)
# The first is started; `kubectl cp` looks for tar in the pod.
_WEBHOOK_COMMANDS = {"extension-server": "bootbridge.lab.extension_server", "tar": "bootbridge.lab.archiver"}
# How an image is made is a part of what it is.
_RECIPES = sorted(Path(recipes.__file__).parent.glob("*.py"))
_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


class Images:
    """Archives in one directory, named after what went in: a file that is there is never made again."""

    def __init__(self, directory: Path, components: Components, konnectivity: Path | None) -> None:
        self._directory = directory
        self._components = components
        self._konnectivity = konnectivity
        self._digests: dict[str, str] = {}

    def archive(self, reference: str) -> Path:
        """The archive with one image, built if need be."""
        sources, build = self._recipe(reference)
        name = reference.replace("/", "_").replace(":", "_")
        path = self._directory / f"{name}-{_fingerprint([*sources, *_RECIPES])}.tar"
        if not path.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            write_file(path, Asset(oci.archive({reference: build()})))
            self._forget_older(path)
        return path

    def _forget_older(self, path: Path) -> None:
        """What is no longer made of the same is not wanted again; a lab may just be reading yesterday's."""
        yesterday = time.time() - OUTDATED_SECONDS
        for other in self._directory.glob(f"{path.name.rpartition('-')[0]}-*.tar"):
            if other != path and other.stat().st_mtime < yesterday:
                other.unlink(missing_ok=True)

    def prepare(self, references: Iterable[str]) -> None:
        for reference in references:
            self.archive(reference)

    def hand_to(self, space: Space, *references: str) -> None:
        """Import images on a node; what it has already is not imported again."""
        present = space.must(
            "ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io", "images", "list", "-q"
        )
        for reference in references:
            if reference.encode() not in present.split():
                space.must(
                    *("ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io"),
                    *("images", "import", "--no-unpack=false", str(self.archive(reference))),
                    timeout=IMPORT_SECONDS,
                )

    def _recipe(self, reference: str) -> tuple[list[Path], Callable[[], Image]]:
        if reference == PAUSE_IMAGE:
            pause = self._components.programs[PAUSE]
            return [pause], lambda: recipes.static({"/pause": pause})
        if reference == KUBERNETES_IMAGE:
            programs = {f"/usr/bin/{name}": self._components.programs[name] for name in _CONTROL_PLANE}
            return list(programs.values()), lambda: recipes.static(programs)
        if reference == KONNECTIVITY_IMAGE:
            assert self._konnectivity is not None
            built = {
                f"/usr/bin/{name}": self._konnectivity / name for name in ("proxy-server", "proxy-agent")
            }
            return list(built.values()), lambda: recipes.static(built)
        if reference == WEBHOOK_IMAGE:
            package = Path(recipes.__file__).parents[1]
            sources = [package / module for module in _WEBHOOK_MODULES]
            return sources, lambda: recipes.python(_WEBHOOK_MODULES, _WEBHOOK_COMMANDS)
        package = Path(recipes.__file__).parents[1]
        rooms = [package / room for room in sorted(recipes.ROOMS)]
        return [path for room in rooms for path in (sorted(room.rglob("*.py")) or [room])], recipes.tunnel


def _fingerprint(sources: list[Path]) -> str:
    """Of size and time, as make does it: reading 200 MB each time would cost more than it saves."""
    told = hashlib.sha256()
    for path in sources:
        status = path.stat()
        told.update(f"{path}:{status.st_size}:{status.st_mtime_ns}\n".encode())
    return told.hexdigest()[:16]
