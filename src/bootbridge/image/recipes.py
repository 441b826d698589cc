"""What goes into which image."""

from __future__ import annotations

from pathlib import Path

from bootbridge import __version__
from bootbridge.image import python_runtime
from bootbridge.image.layer import copied, directory, layer
from bootbridge.image.oci import Image

NOBODY = "65532:65532"
_LABELS = {
    "org.opencontainers.image.title": "bootbridge",
    "org.opencontainers.image.version": __version__,
    "org.opencontainers.image.licenses": "Apache-2.0",
}


def tunnel() -> Image:
    """Our server and agent, at the paths where the original's image keeps its own."""
    return Image(
        layers=(layer(python_runtime.runtime_entries()), layer(python_runtime.own_entries())),
        entrypoint=("/usr/bin/proxy-agent",),
        environment={
            "PATH": "/usr/bin",
            # Beside the interpreter, wherever this machine's loader would have looked.
            "LD_LIBRARY_PATH": python_runtime.LIBRARIES,
        },
        user=NOBODY,
        labels=_LABELS,
    )


def static(programs: dict[str, Path], *, user: str = "") -> Image:
    """Statically linked programs and nothing else: path in the image → file here; the first is started."""
    entries = [copied(path, source, 0o755) for path, source in programs.items()]
    return Image(
        layers=(layer([directory("/tmp", 0o1777), directory("/etc"), *entries]),),
        entrypoint=(next(iter(programs)),),
        environment={"PATH": "/usr/bin"},
        user=user,
    )
