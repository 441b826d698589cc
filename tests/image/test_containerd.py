"""Images start in containerd by their archives alone, without a registry or other files of this machine.

With BOOTBRIDGE_RELEASE=DIR it tests the archives of a release, as `make release` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootbridge import __version__, installation
from bootbridge.common.files import Asset, write_file
from bootbridge.image import oci, recipes
from bootbridge.trust.authority import Authority
from tests.image.test_tunnel_image import wait_until_ready
from tests.support.containerd import Containerd, containerd
from tests.support.process_program import free_port

RELEASE = os.environ.get("BOOTBRIDGE_RELEASE", "")
USER = 65532

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    with containerd(tmp_path_factory.mktemp("containerd")) as started:
        yield started


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the archives of both images, named as in a release."""
    if RELEASE:
        return Path(RELEASE)
    folder = tmp_path_factory.mktemp("archives")
    for name, image in (("bootbridge", recipes.tunnel()), ("bootbridge-node", recipes.node())):
        packed = oci.archive({f"localhost/{name}:{__version__}": image})
        write_file(folder / f"{name}-image-{__version__}.tar", Asset(packed))
    return folder


@pytest.fixture(scope="module")
def tunnel_image(runtime: Containerd, archives: Path) -> str:
    return runtime.import_archive(archives / f"bootbridge-image-{__version__}.tar")


@pytest.fixture(scope="module")
def node_image(runtime: Containerd, archives: Path) -> str:
    return runtime.import_archive(archives / f"bootbridge-node-image-{__version__}.tar")


def test_server_and_agent_connect(runtime: Containerd, tunnel_image: str, tmp_path: Path) -> None:
    """As containers of the imported image, with mTLS; both report ready."""
    assert tunnel_image == f"localhost/bootbridge:{__version__}"
    folder = tmp_path / "certificates"
    folder.mkdir()
    authority = Authority.create("containerd")
    authority.write(folder, "ca")
    authority.issue_server(["127.0.0.1"]).write(folder, "server")
    authority.issue_client("agent").write(folder, "agent")
    for path in (folder, *folder.iterdir()):
        os.chown(path, USER, USER)
    agent_port, server_health, agent_health = free_port(), free_port(), free_port()
    runtime.start(
        tunnel_image,
        "server",
        folder,
        "/proxy-server",
        f"--uds-name={folder}/server.sock",
        "--server-port=0",
        f"--agent-port={agent_port}",
        f"--health-port={server_health}",
        f"--admin-port={free_port()}",
        f"--cluster-cert={folder}/server.crt",
        f"--cluster-key={folder}/server.key",
        f"--cluster-ca-cert={folder}/ca.crt",
    )
    runtime.start(
        tunnel_image,
        "agent",
        folder,
        "/proxy-agent",
        "--proxy-server-host=127.0.0.1",
        f"--proxy-server-port={agent_port}",
        f"--health-server-port={agent_health}",
        f"--admin-server-port={free_port()}",
        f"--ca-cert={folder}/ca.crt",
        f"--agent-cert={folder}/agent.crt",
        f"--agent-key={folder}/agent.key",
    )
    wait_until_ready(server_health)
    wait_until_ready(agent_health)


def test_the_programs_of_the_node_image_start(runtime: Containerd, node_image: str) -> None:
    assert node_image == f"localhost/bootbridge-node:{__version__}"
    program = "/usr/bin/bootbridge"
    assert "usage:" in runtime.run(node_image, "join-service", program, "join-service", "--help")


def test_the_images_have_compiled_modules(runtime: Containerd, tunnel_image: str, node_image: str) -> None:
    """Those of a release always; others as the installation that built them."""
    kind = "compiled, Python" if RELEASE or installation.COMPILED else "plain Python"
    shown = runtime.run(tunnel_image, "server-version", "/proxy-server", "--version")
    assert shown.startswith(f"proxy-server (bootbridge) {__version__}, {kind} ")
    shown = runtime.run(node_image, "version", "/usr/bin/bootbridge", "version")
    assert shown.startswith(f"bootbridge {__version__}, {kind} ")
