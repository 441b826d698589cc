"""The image of server and agent runs without any other file of this machine."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bootbridge import __version__, installation
from bootbridge.image import recipes
from bootbridge.image.oci import OciImage
from bootbridge.trust.authority import Authority
from tests.support.image_root import unpacked
from tests.support.process_program import free_port

pytestmark = pytest.mark.slow

COMPRESSED_BYTES_MAX = UNPACKED_BYTES_MAX = 120_000_000


@pytest.fixture(scope="module")
def image() -> OciImage:
    return recipes.tunnel()


@pytest.fixture(scope="module")
def root(image: OciImage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(image, tmp_path_factory.mktemp("root"))


# As in a container: separate mounts, with /proc, and an empty environment.
INSIDE = 'root="$1"; shift; mount --bind /proc "$root/proc" && exec env -i "$@"'


def command(root: Path, image: OciImage, *argv: str) -> list[str]:
    environment = [f"{name}={value}" for name, value in image.environment.items()]
    container = [*environment, "/usr/sbin/chroot", f"--userspec={image.user}", str(root), *argv]
    return ["unshare", "--mount", "sh", "-c", INSIDE, "sh", str(root), *container]


@contextmanager
def running(root: Path, image: OciImage, *argv: str) -> Iterator[None]:
    process = subprocess.Popen(command(root, image, *argv))
    try:
        yield
    finally:
        process.kill()
        process.wait(10)


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            assert time.monotonic() < deadline, "not ready within 30 s"
        time.sleep(0.05)


def test_the_image_stays_below_120_megabytes(image: OciImage, root: Path) -> None:
    unpacked = sum(path.lstat().st_size for path in root.rglob("*"))
    assert image.size < COMPRESSED_BYTES_MAX
    assert unpacked < UNPACKED_BYTES_MAX


def test_two_builds_have_one_digest(image: OciImage) -> None:
    assert recipes.tunnel().digest == image.digest


def test_the_image_has_no_shell(root: Path) -> None:
    assert not list(root.glob("**/sh")) + list(root.glob("**/bash"))


@pytest.mark.parametrize("program", ["proxy-server", "proxy-agent"])
@pytest.mark.parametrize("folder", ["/", "/usr/bin/"], ids=["Konnectivity", "OpenShift"])
def test_the_programs_have_the_paths_of_other_images(
    root: Path, image: OciImage, program: str, folder: str
) -> None:
    """A manifest that was made for Konnectivity's or OpenShift's image works with ours."""
    done = subprocess.run(
        command(root, image, f"{folder}{program}", "--version"), capture_output=True, text=True
    )
    kind = "compiled, Python" if installation.COMPILED else "plain Python"
    assert done.stdout.startswith(f"{program} (bootbridge) {__version__}, {kind} ")
    assert (
        "\nnot compiled: the image was built with plain modules: " in done.stdout
    ) is not installation.COMPILED


def test_server_and_agent_of_the_image_connect_as_user_nobody(root: Path, image: OciImage) -> None:
    """With mTLS; both report ready, and both serve the status page with its files."""
    authority = Authority.create("image")
    authority.write(root / "tmp", "ca")
    authority.issue_server(["127.0.0.1"]).write(root / "tmp", "server")
    authority.issue_client("agent").write(root / "tmp", "agent")
    for key in (root / "tmp").glob("*.key"):
        os.chown(key, 65532, 65532)
    agent_port, server_health, agent_health = free_port(), free_port(), free_port()
    server_admin, agent_admin = free_port(), free_port()
    server = running(
        root,
        image,
        "/usr/bin/proxy-server",
        "--uds-name=/tmp/server.sock",
        "--server-port=0",
        f"--agent-port={agent_port}",
        f"--health-port={server_health}",
        f"--admin-port={server_admin}",
        "--cluster-cert=/tmp/server.crt",
        "--cluster-key=/tmp/server.key",
        "--cluster-ca-cert=/tmp/ca.crt",
    )
    agent = running(
        root,
        image,
        "/usr/bin/proxy-agent",
        "--proxy-server-host=127.0.0.1",
        f"--proxy-server-port={agent_port}",
        f"--health-server-port={agent_health}",
        f"--admin-server-port={agent_admin}",
        "--ca-cert=/tmp/ca.crt",
        "--agent-cert=/tmp/agent.crt",
        "--agent-key=/tmp/agent.key",
    )
    with server, agent:
        wait_until_ready(server_health)
        wait_until_ready(agent_health)
        for port in (server_admin, agent_admin):
            for path in ("/", "/status.css", "/status.js", "/status.svg"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                    assert len(answer.read()) > 100


def test_packages_of_other_programs_are_not_in_the_image(root: Path) -> None:
    assert not [path for name in ("pydantic", "cryptography") for path in root.rglob(f"{name}*")]
