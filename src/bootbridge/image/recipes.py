"""Which programs, modules and libraries each container image contains."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from bootbridge import __version__
from bootbridge.image import python_runtime
from bootbridge.image.layer import Entry, ImageLayer, copied, directory, layer, link
from bootbridge.image.oci import OciImage

UNPRIVILEGED_USER = "65532:65532"
# The packages and modules of bootbridge that proxy-server and proxy-agent import.
TUNNEL_MODULES = frozenset(
    (
        "__init__.py",
        "bounds.py",
        "errors.py",
        "installation.py",
        "metrics.py",
        "options.py",
        "common",
        "wire",
        "ports",
        "tunnel",
        "runtime",
        "kube",
        "status_page",
        "proxy_server",
        "proxy_agent",
        "cli",
    )
)
# The same for the join service, which verifies evidence and signs certificates.
NODE_MODULES = TUNNEL_MODULES | {"join_api", "join_service", "metadata", "trust"}
NODE_DEPENDENCIES = (
    "cryptography",
    "cffi",
    "pydantic",
    "pydantic_core",
    "annotated-types",
    "typing-inspection",
    "typing_extensions",
)
COMMANDS = {"proxy-agent": "bootbridge.cli.agent", "proxy-server": "bootbridge.cli.server"}
_LINKS = tuple(link(f"/{name}", f"usr/bin/{name}") for name in COMMANDS)
NODE_COMMANDS = {"bootbridge": "bootbridge.cli.main"}
_LABELS = {
    "org.opencontainers.image.title": "bootbridge",
    "org.opencontainers.image.version": __version__,
    "org.opencontainers.image.licenses": "Apache-2.0",
}


def tunnel(package: Path = python_runtime.OWN_PACKAGE) -> OciImage:
    """Returns the image of proxy-server and proxy-agent, whose modules are copied from `package`.

    Both are in /usr/bin, as in OpenShift's image, and in /, as in Konnectivity's: manifests work with either.
    """
    return python(TUNNEL_MODULES, COMMANDS, package=package, more=_LINKS)


def node(package: Path = python_runtime.OWN_PACKAGE) -> OciImage:
    """Returns the image of `bootbridge join-service` and `bootbridge tpm-helper`."""
    return python(NODE_MODULES, NODE_COMMANDS, NODE_DEPENDENCIES, package=package)


def python(
    modules: Collection[str],
    commands: Mapping[str, str],
    dependencies: Collection[str] = (),
    *,
    package: Path = python_runtime.OWN_PACKAGE,
    more: Collection[Entry] = (),
) -> OciImage:
    """Returns an image with these modules of bootbridge; the first of `commands` is the entrypoint.

    `commands` maps a name in /usr/bin to the module whose `main` it calls. The container runs as an
    unprivileged user by default.
    """
    packages = (layer(python_runtime.package_entries(dependencies)),) if dependencies else ()
    own = layer([*python_runtime.own_entries(modules, commands, package), *more])
    return OciImage(
        layers=(_runtime(), *packages, own),
        entrypoint=(f"/usr/bin/{next(iter(commands))}",),
        environment={
            "PATH": "/usr/bin",
            # The image keeps the C libraries beside the interpreter, not in the loader's default path.
            "LD_LIBRARY_PATH": python_runtime.LIBRARIES,
        },
        user=UNPRIVILEGED_USER,
        labels=_LABELS,
    )


@cache
def _runtime() -> ImageLayer:
    return layer(python_runtime.runtime_entries())


def static(programs: Mapping[str, Path], *, user: str = "") -> OciImage:
    """Returns an image of statically linked programs only; the first of `programs` is the entrypoint.

    `programs` maps a path in the image to a file on this machine.
    """
    entries = [copied(path, source, 0o755) for path, source in programs.items()]
    return OciImage(
        layers=(layer([directory("/tmp", 0o1777), directory("/etc"), *entries]),),
        entrypoint=(next(iter(programs)),),
        environment={"PATH": "/usr/bin"},
        user=user,
    )
