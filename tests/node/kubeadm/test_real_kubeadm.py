"""The pinned kubeadm accepts our documents and creates what we expect.

It runs below a directory of the test (--rootfs), isolated from this machine.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from bootbridge.bootstrap.render import apiserver_manifest
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.node import node_paths
from bootbridge.node.init import tunnel
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.kubeadm import documents, leftovers
from bootbridge.node.kubeadm.run import Kubeadm, KubeadmFailed
from tests.node.kubeadm.examples import FAMILIES, instance, spec, ticket
from tests.support.kubernetes import BIN

pytestmark = pytest.mark.kubernetes

REAL = BIN / "kubeadm"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root = tmp_path / "root"
    for name in ("tmp", "etc", "run", "var/lib"):
        (root / name).mkdir(parents=True)
    return Host(root)


@pytest.fixture
def program(tmp_path: Path, host: Host) -> str:
    """A kubeadm that runs with --rootfs."""
    path = tmp_path / "kubeadm"
    lines = [
        "#!/bin/bash",
        f"root={shlex.quote(str(host.root))}",
        f'exec unshare --map-root-user {REAL} --rootfs="$root" "${{@/"$root"/}}"',
    ]
    path.write_text("\n".join(lines))
    path.chmod(0o755)
    return str(path)


def validated(configuration: bytes, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "configuration.yaml"
    file.write_bytes(configuration)
    return subprocess.run(
        [REAL, "config", "validate", "--config", file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("families", FAMILIES)
def test_every_init_document_is_valid(families: str, tmp_path: Path) -> None:
    full = spec(
        families,
        control_plane_endpoint="lb.example",
        api_server_sans=("api.example",),
        image_repository="registry.example/k8s",
        etcd_image_tag="3.6.1-0",
        without_addons=("coredns", "kube-proxy"),
        ignore_preflight_errors=("Swap",),
        kubelet={"cgroupDriver": "cgroupfs"},
    )
    for each in (spec(families), full):
        made = documents.init_documents(
            each, instance(families, provider_id="cloud:///i-1"), patches="/run/x"
        )
        done = validated(documents.dump(made), tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("families", FAMILIES)
@pytest.mark.parametrize("control_plane", [False, True])
def test_every_join_document_is_valid(families: str, control_plane: bool, tmp_path: Path) -> None:
    made = documents.join_documents(
        ticket(
            families, control_plane=control_plane, provider_id="cloud:///i-1", ignore_preflight_errors=("a",)
        )
    )
    done = validated(documents.dump(made), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_kubeadm_rejects_an_unknown_field(tmp_path: Path) -> None:
    """Proves that the two tests above can fail."""
    (joining,) = documents.join_documents(ticket())
    done = validated(documents.dump(({**joining, "skipPhase": []},)), tmp_path)
    assert done.returncode != 0
    assert "unknown field" in done.stderr


def test_kubeadm_rejects_a_version_that_is_too_old(tmp_path: Path) -> None:
    made = documents.init_documents(spec(kubernetes_version="v1.19.0"), instance())
    done = validated(documents.dump(made), tmp_path)
    assert done.returncode != 0
    assert "1.19" in done.stderr


async def test_the_version_check_accepts_the_real_kubeadm(program: str, host: Host) -> None:
    await Kubeadm(program, host).require_version("v1.36.3")


@pytest.mark.parametrize("families", FAMILIES)
async def test_the_certs_phase_includes_all_names(families: str, program: str, host: Host) -> None:
    """skipPhases does not apply to a phase that is run by name."""
    events: list[StageEvent] = []
    wanted = spec(families, api_server_sans=("api.example",))
    configuration = documents.dump(documents.init_documents(wanted, instance(families)))
    await Kubeadm(program, host).make_certificates(configuration, events.append)
    assert [(event.name, event.state) for event in events if event.state != "output"] == [
        ("certs", "started"),
        ("certs", "done"),
    ]
    made = x509.load_pem_x509_certificate(host.read(f"{node_paths.PKI}/apiserver.crt") or b"")
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"cp-0", "api.example", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    assert set(instance(families).addresses) <= set(names.get_values_for_type(x509.IPAddress))


@pytest.mark.parametrize("families", FAMILIES)
async def test_a_dry_run_reports_all_stages(families: str, program: str, host: Host) -> None:
    """With --dry-run, which starts nothing."""
    host.make_directory(node_paths.KUBELET)
    wanted = spec(families, without_addons=("kube-proxy",))
    first, *others = documents.init_documents(wanted, instance(families, provider_id="cloud:///i-1"))
    first = {**first, "dryRun": True, "skipPhases": [each for each in first["skipPhases"] if each != "certs"]}
    events: list[StageEvent] = []
    await Kubeadm(program, host).init(documents.dump((first, *others)), events.append)
    begun = [event.name for event in events if event.state == "started"]
    assert {"certs", "kubeconfig", "etcd", "control-plane", "kubelet-start", "bootstrap-token"} <= set(begun)
    assert "preflight" not in begun
    assert not any("--discovery-token" in event.text for event in events)
    (flags,) = host.path(node_paths.KUBERNETES).glob("tmp/kubeadm-init-dryrun*/kubeadm-flags.env")
    addresses = ",".join(map(str, instance(families).addresses))
    assert f"--node-ip={addresses}" in flags.read_text()
    assert "--provider-id=cloud:///i-1" in flags.read_text()


def test_the_tunnel_patch_changes_only_the_static_pod_of_this_machine(
    program: str, host: Host, tmp_path: Path
) -> None:
    wanted = spec(tunnel=True, tunnel_image="registry.example/bootbridge:1")
    plan = tunnel.plan_for(wanted, instance())
    host.make_directory(node_paths.PATCHES)
    host.write(tunnel.PATCH, tunnel.apiserver_patch(plan))
    made = documents.init_documents(wanted, instance(), patches=node_paths.PATCHES)
    (tmp_path / "root" / "init.yaml").write_bytes(documents.dump(made))
    words = [program, "init", "phase", "control-plane", "apiserver", "--config=/init.yaml"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    manifest = host.read(f"{node_paths.MANIFESTS}/kube-apiserver.yaml") or b""
    setting = apiserver_manifest.egress_setting(plan)
    assert set(setting.arguments) <= set(apiserver_manifest.command_line(manifest, "manifest"))
    # `up` finds nothing to add, and `down` leaves what kubeadm would have made without us.
    assert apiserver_manifest.add(manifest, setting, "manifest") == manifest
    host.remove_tree(node_paths.PATCHES)
    plain = documents.dump(documents.init_documents(wanted, instance()))
    assert b"egress" not in plain
    (tmp_path / "root" / "init.yaml").write_bytes(plain)
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    unpatched = host.read(f"{node_paths.MANIFESTS}/kube-apiserver.yaml") or b""
    bare = apiserver_manifest.remove(manifest, setting, "manifest")
    assert yaml.safe_load(bare) == yaml.safe_load(unpatched)


async def test_an_incomplete_kubeadm_reset_is_completed(program: str, host: Host) -> None:
    """Without /proc, kubeadm stops its reset before it deletes files."""
    traces = (
        node_paths.KUBELET_CONFIG,
        node_paths.BOOTSTRAP_KUBECONFIG,
        f"{node_paths.ETCD_DATA}/member/snap/db",
    )
    for path in traces:
        host.make_directory(path.rpartition("/")[0])
        host.write(path, Asset(b"{}"))
    with pytest.raises(KubeadmFailed, match="cleanup-node"):
        await Kubeadm(program, host).reset("unix:///run/nowhere.sock", lambda event: None)
    assert leftovers.find_traces(host)
    leftovers.remove_all(host)
    assert leftovers.find_traces(host) == []
