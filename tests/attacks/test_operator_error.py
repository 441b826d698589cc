"""Operator's errors that would make the tunnel or a node insecure are refused."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bootstrap.diagnose.log_bundle import unpacked
from tests.bootstrap.diagnose.ssh_node import Node, install_dir, needs_sshd
from tests.common.secrets_corpus import CORPUS, filled
from tests.node.local_instance import LocalInstance, RecordingApiServer
from tests.support.process_program import OURS

SECONDS = 60.0
REACH = "20s"  # how long `node init` tries to reach the instance, if it does not refuse the file
ZEROS = f"sha256:{0:064}"
EXAMPLE_SPEC = {"kubernetesVersion": "v1.36.3", "joinServiceImage": "example/bootbridge:1"}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[LocalInstance]:
    api = RecordingApiServer()
    yield LocalInstance(tmp_path, api)
    api.close()


def init(instance: LocalInstance, component: dict[str, object]) -> subprocess.CompletedProcess[str]:
    """Runs `bootbridge node init` with a cluster.yaml that has this component."""
    (instance.user / "spec.yaml").write_text(json.dumps({**EXAMPLE_SPEC, "components": [component]}))
    command = [OURS / "bootbridge", *instance.init_arguments, "--timeout", REACH]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def init_on_node(instance: LocalInstance, component: dict[str, object]) -> str:
    """The same with `bootbridge node run` on the instance; returns the output of both."""
    node = subprocess.Popen(
        [OURS / "bootbridge", "node", "run", "--config", str(instance.configuration)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        done = init(instance, component)
    finally:
        node.kill()
        output, _ = node.communicate()
    assert done.returncode == 1, done.stderr
    return output + done.stdout + done.stderr


@pytest.mark.parametrize(
    "url",
    [
        " http://mirror.example/kubelet",
        "\thttp://mirror.example/kubelet",
        "ht\ntp://mirror.example/kubelet",
        "\x01http://mirror.example/kubelet",
        "http://mirror.example/kube let",
        "http://mirror.example/kubelet\u00a0",
    ],
)
def test_a_blank_in_a_url_does_not_bypass_the_hash(instance: LocalInstance, url: str) -> None:
    for hashed in ("", ZEROS):
        done = init(instance, {"url": url, "hash": hashed, "installPath": "/usr/bin/kubelet"})
        assert done.returncode == 1
        assert "components[0]: invalid URL: blank or control character" in done.stderr


@pytest.mark.parametrize("scheme", ["http", "HTTP", "https", "HttpS"])
def test_a_download_without_a_hash_is_refused(instance: LocalInstance, scheme: str) -> None:
    done = init(instance, {"url": f"{scheme}://mirror.example/kubelet", "installPath": "/usr/bin/kubelet"})
    assert done.returncode == 1
    assert f"components[0]: hash required for an {scheme.lower()} URL" in done.stderr
    assert 'add "hash: sha256:<64 hexadecimal digits>"' in done.stderr
    assert "sha256sum" in done.stderr


def archive_of(folder: Path, *members: tuple[str, bytes, str]) -> dict[str, object]:
    """Returns a component with this archive: (name, tar type, link target)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    path = folder / "component.tar.gz"
    path.write_bytes(data.getvalue())
    return {
        "url": path.as_uri(),
        "hash": "sha256:" + hashlib.sha256(data.getvalue()).hexdigest(),
        "installPath": "/opt/component",
        "extract": True,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "members",
    [
        (("p", tarfile.DIRTYPE, ""), ("p/q", tarfile.SYMTYPE, "."), ("l", tarfile.SYMTYPE, "p/q/../..")),
        (("l", tarfile.SYMTYPE, "p/q/../.."), ("p", tarfile.DIRTYPE, ""), ("p/q", tarfile.SYMTYPE, ".")),
        (("l", tarfile.SYMTYPE, "/etc"),),
        (("l", tarfile.LNKTYPE, "../../state.json"),),
    ],
    ids=["through a link", "through a later link", "absolute", "hard link"],
)
def test_a_link_in_an_archive_cannot_leave_it(
    instance: LocalInstance, members: tuple[tuple[str, bytes, str], ...]
) -> None:
    output = init_on_node(instance, archive_of(instance.user, *members))
    assert "/opt/component: " in output
    assert "outside the archive" in output or "unsupported file type" in output
    assert [
        path for path in (instance.root / "opt").rglob("*") if not path.is_dir() or path.is_symlink()
    ] == []


@needs_sshd
def test_a_shared_bundle_contains_no_password(tmp_path: Path) -> None:
    """Files of ten kinds on the bootstrap node, collected over ssh; names and paths in them are kept."""
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node")
    secrets: list[str] = []
    for number, source in enumerate(CORPUS.values()):
        text, added = filled(source.text, number)
        secrets += added
        (tmp_path / f"node/opt/openshift/bootbridge/{number}.txt").write_text(text)
    directory, out = (
        install_dir(tmp_path, node.key.read_bytes(), ("ExternalIP", "127.0.0.1")),
        tmp_path / "out",
    )
    command = [OURS / "bootbridge", "gather", "--dir", directory, "--user", "root", "--out", out]
    command += ["--port", str(node.port), "--known-hosts", node.known_hosts]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    finally:
        node.close()
    assert done.returncode == 0, done.stderr
    collected = b"\n".join(unpacked(out).values()).decode()
    assert "--tls-private-key-file=/etc/kubernetes/pki/apiserver.key" in collected
    assert [secret for secret in secrets if secret in collected] == []
