"""What goes into which image."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from bootbridge import __version__
from bootbridge.image import python_runtime
from bootbridge.image.layer import Layer, copied, directory, layer
from bootbridge.image.oci import Image

NOBODY = "65532:65532"
# The rooms of the house that those two programs live in.
ROOMS = frozenset(
    (
        "__init__.py",
        "bounds.py",
        "errors.py",
        "metrics.py",
        "options.py",
        "wire",
        "tunnel",
        "runtime",
        "kube",
        "proxy_server",
        "proxy_agent",
        "cli",
    )
)
# Those of the join service: it verifies evidence and signs certificates.
NODE_ROOMS = ROOMS | {"trust", "bootstrap", "node"}
NODE_PACKAGES = ("cryptography", "cffi")
COMMANDS = {"proxy-agent": "bootbridge.cli.agent", "proxy-server": "bootbridge.cli.server"}
NODE_COMMANDS = {"bootbridge": "bootbridge.cli.main"}
_LABELS = {
    "org.opencontainers.image.title": "bootbridge",
    "org.opencontainers.image.version": __version__,
    "org.opencontainers.image.licenses": "Apache-2.0",
}


def tunnel() -> Image:
    """Our server and agent, at the paths where the original's image keeps its own."""
    return python(ROOMS, COMMANDS)


def node() -> Image:
    """Our whole command as far as a cluster runs it: `bootbridge join-service`, by default as nobody."""
    return python(NODE_ROOMS, NODE_COMMANDS, NODE_PACKAGES)


def python(rooms: Collection[str], commands: Mapping[str, str], packages: Collection[str] = ()) -> Image:
    """Commands (→ modules) of our own package and the rooms they live in; the first is started."""
    more = (layer(python_runtime.package_entries(packages)),) if packages else ()
    return Image(
        layers=(_runtime(), *more, layer(python_runtime.own_entries(rooms, commands))),
        entrypoint=(f"/usr/bin/{next(iter(commands))}",),
        environment={
            "PATH": "/usr/bin",
            # Beside the interpreter, wherever this machine's loader would have looked.
            "LD_LIBRARY_PATH": python_runtime.LIBRARIES,
        },
        user=NOBODY,
        labels=_LABELS,
    )


@cache
def _runtime() -> Layer:
    return layer(python_runtime.runtime_entries())


def static(programs: Mapping[str, Path], *, user: str = "") -> Image:
    """Statically linked programs and nothing else: path in the image → file here; the first is started."""
    entries = [copied(path, source, 0o755) for path, source in programs.items()]
    return Image(
        layers=(layer([directory("/tmp", 0o1777), directory("/etc"), *entries]),),
        entrypoint=(next(iter(programs)),),
        environment={"PATH": "/usr/bin"},
        user=user,
    )
