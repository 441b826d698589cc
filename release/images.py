"""Builds the OCI images from an installation of the compiled wheel, each with its bill of materials."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from release import environments
from release.commands import ReleaseError, environment, run, step
from release.interpreters import Interpreter

# The name of the archive, and the image that `bootbridge image build` makes.
IMAGES = {"bootbridge-image": "tunnel", "bootbridge-node-image": "node"}


def build(
    output: Path, *, wheels: Path, locks: Path, folder: Path, interpreter: Interpreter, time: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="images-", dir=folder) as scratch:
        programs = environments.create(Path(scratch), "images", interpreter, [locks / "runtime.lock"])
        options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--find-links")
        run([programs / "pip", "install", *options, wheels, "bootbridge"])
        variables = environment(time)
        found = json.loads(run([programs / "bootbridge", "version", "--json"], variables=variables))
        if not found["compiled"]:
            raise ReleaseError(f"images: the installation is not compiled: {found['reason']}")
        for name, image in IMAGES.items():
            with step(f"image {image}, with Python {found['python']} and OpenSSL {found['openssl']}"):
                stem = output / f"{name}-{found['version']}"
                files = ("--output", f"{stem}.tar", "--sbom", f"{stem}.cdx.json")
                run([programs / "bootbridge", "image", "build", image, *files, "--json"], variables=variables)
