"""Builds the lab's container images and imports them into each node's containerd, without a registry."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bootbridge.common.files import Asset, write_file
from bootbridge.image import oci, python_runtime, recipes
from bootbridge.image.oci import OciImage
from bootbridge.lab.components import KONNECTIVITY_PROGRAMS, PAUSE, Components
from bootbridge.lab.control_plane import IMAGE as KUBERNETES_IMAGE
from bootbridge.lab.namespaces import NodeNamespaces
from bootbridge.lab.node_runtime import CONTAINERD_SOCKET, PAUSE_IMAGE

TUNNEL_IMAGE = "localhost/bootbridge:lab"
WEBHOOK_IMAGE = "localhost/webhook:lab"
KONNECTIVITY_IMAGE = "localhost/konnectivity:lab"
NODE_IMAGE = "localhost/bootbridge-node:lab"
# The image repository in kubeadm's configuration; all of its images are imported.
KUBEADM_REPOSITORY = "localhost"
# Several labs may unpack 200 MB each at the same time, on two cores.
IMPORT_SECONDS = 300.0
OUTDATED_SECONDS = 3600.0

WEBHOOK_MODULES = (
    "__init__.py",
    "demo/__init__.py",
    "demo/webhook.py",
    "lab/__init__.py",
    "lab/archiver.py",
    "lab/extension_server.py",
)
# The first is the entrypoint; `kubectl cp` runs tar in the pod.
_WEBHOOK_COMMANDS = {"extension-server": "bootbridge.lab.extension_server", "tar": "bootbridge.lab.archiver"}
# A change of the code that builds an image changes the image.
_RECIPES = sorted(Path(recipes.__file__).parent.glob("*.py"))
_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
# Images of kubeadm's static pods, each named after its program.
_KUBEADM = (*_CONTROL_PLANE, "etcd")


class Images:
    """OciImage archives in one directory, named by a hash of their inputs, so that each is built once."""

    def __init__(self, directory: Path, components: Components, konnectivity: Path | None) -> None:
        self._directory = directory
        self._components = components
        self._konnectivity = konnectivity

    def archive(self, reference: str) -> Path:
        """Returns the archive of one image; builds it if it does not exist."""
        sources, build = self._recipe(reference)
        name = reference.replace("/", "_").replace(":", "_")
        path = self._directory / f"{name}-{_fingerprint([*sources, *_RECIPES])}.tar"
        if not path.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            with _locked(path):
                # Another lab may have built it while this one waited for the lock.
                if not path.exists():
                    write_file(path, Asset(oci.archive({reference: build()})))
                    self._remove_outdated(path)
        return path

    def _remove_outdated(self, path: Path) -> None:
        """Removes older archives of the same image; recent ones may be in use by another lab."""
        oldest = time.time() - OUTDATED_SECONDS
        for other in self._directory.glob(f"{path.name.rpartition('-')[0]}-*.tar"):
            if other != path and other.stat().st_mtime < oldest:
                other.unlink(missing_ok=True)

    def prepare(self, references: Iterable[str]) -> None:
        for reference in references:
            self.archive(reference)

    def import_into(self, namespaces: NodeNamespaces, *references: str) -> None:
        """Imports images that the node does not have yet."""
        present = namespaces.run_checked(
            "ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io", "images", "list", "-q"
        )
        for reference in references:
            if reference.encode() not in present.split():
                namespaces.run_checked(
                    *("ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io"),
                    *("images", "import", "--no-unpack=false", str(self.archive(reference))),
                    timeout=IMPORT_SECONDS,
                )

    def _recipe(self, reference: str) -> tuple[list[Path], Callable[[], OciImage]]:
        if reference == PAUSE_IMAGE:
            pause = self._components.programs[PAUSE]
            return [pause], lambda: recipes.static({"/pause": pause})
        if reference == KUBERNETES_IMAGE:
            programs = {f"/usr/bin/{name}": self._components.programs[name] for name in _CONTROL_PLANE}
            return list(programs.values()), lambda: recipes.static(programs)
        if (name := kubeadm_program(reference)) == PAUSE:
            return self._recipe(PAUSE_IMAGE)
        if name:
            program = self._components.programs[name]
            return [program], lambda: recipes.static({f"/usr/bin/{name}": program})
        if reference == KONNECTIVITY_IMAGE:
            assert self._konnectivity is not None
            built = {f"/usr/bin/{name}": self._konnectivity / name for name in KONNECTIVITY_PROGRAMS}
            return list(built.values()), lambda: recipes.static(built)
        if reference == WEBHOOK_IMAGE:
            package = Path(recipes.__file__).parents[1]
            sources = [package / module for module in WEBHOOK_MODULES]
            return sources, lambda: recipes.python(WEBHOOK_MODULES, _WEBHOOK_COMMANDS)
        if reference == NODE_IMAGE:
            return _module_files(recipes.NODE_MODULES), recipes.node
        return _module_files(recipes.TUNNEL_MODULES), recipes.tunnel


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock on one archive: labs that share a directory do not build the same image twice."""
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def remove_unfinished(directory: Path) -> None:
    """Removes partial archives whose lock is free; a shared directory may hold other files, which stay."""
    for lock in directory.glob(".*.tar.lock"):
        with suppress(OSError), lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            archive = glob.escape(lock.name.removesuffix(".lock"))
            # The names of `write_file`'s temporary files.
            for left in directory.glob(f"{archive}.????????"):
                left.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)


def kubeadm_program(reference: str) -> str:
    """Returns the program of one of kubeadm's images; empty for other images."""
    name = reference.removeprefix(f"{KUBEADM_REPOSITORY}/").partition(":")[0]
    return name if name in (*_KUBEADM, PAUSE) and reference != PAUSE_IMAGE else ""


def _module_files(modules: Iterable[str]) -> list[Path]:
    package = Path(recipes.__file__).parents[1]
    paths = [package / module for module in sorted(modules)]
    files = [file for path in paths for file in (sorted(path.rglob("*")) or [path])]
    # A compiled installation has .so files beside the .py files.
    return [file for file in files if file.suffix in python_runtime.OWN_SUFFIXES]


def _fingerprint(sources: list[Path]) -> str:
    """Hashes size and modification time, as make does: reading 200 MB each time would be slower."""
    digest = hashlib.sha256(python_runtime.release(recipes.NODE_DEPENDENCIES).encode())
    for path in sources:
        status = path.stat()
        digest.update(f"{path}:{status.st_size}:{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
