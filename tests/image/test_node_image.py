"""The image of the join service contains every module that it imports, and needs no other files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bootbridge.image import python_runtime, recipes
from bootbridge.image.oci import OciImage
from tests.image.test_tunnel_image import command
from tests.support.image_root import unpacked

pytestmark = pytest.mark.slow

COMPRESSED_BYTES_MAX = 60_000_000
INTERPRETER = (python_runtime.INTERPRETER, "-I", "-c")


@pytest.fixture(scope="module")
def image() -> OciImage:
    return recipes.node()


@pytest.fixture(scope="module")
def root(image: OciImage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(image, tmp_path_factory.mktemp("root"))


def run(root: Path, image: OciImage, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(root, image, *argv), capture_output=True, text=True, timeout=60)


def test_the_join_service_starts_and_imports_all_modules(root: Path, image: OciImage) -> None:
    assert run(root, image, *image.entrypoint, "join-service", "--help").returncode == 0
    # The pod's second container; it runs the same image.
    assert run(root, image, *image.entrypoint, "tpm-helper", "--help").returncode == 0
    imported = run(root, image, *INTERPRETER, "import bootbridge.join_service.main")
    assert (imported.returncode, imported.stderr) == (0, "")


def test_cryptography_works_in_the_image(root: Path, image: OciImage) -> None:
    script = (
        "from bootbridge.trust.authority import Authority; print(len(Authority.create('x').cert_pem) > 0)"
    )
    assert run(root, image, *INTERPRETER, script).stdout == "True\n"


def test_the_first_layer_is_that_of_the_tunnel_image(image: OciImage) -> None:
    """A node that runs both stores it once."""
    assert image.layers[0].blob.digest == recipes.tunnel().layers[0].blob.digest


def test_the_size_is_limited(image: OciImage) -> None:
    assert image.size < COMPRESSED_BYTES_MAX
