"""The files of blank instances and their operator agree, and the bootstrapper can read them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootbridge.cli.main import main
from bootbridge.common import documents
from bootbridge.common.yaml_text import to_yaml
from bootbridge.errors import OperatorError
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.instance import Role
from bootbridge.join_api.policy import ClusterFacts, parse_policy, with_cluster
from bootbridge.lab import bootstrapper_files
from bootbridge.lab.bootstrapper_files import INSTANCE_CONFIG, INSTANCE_METADATA
from bootbridge.lab.images import NODE_IMAGE, PAUSE_IMAGE, TUNNEL_IMAGE, kubeadm_program
from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import FAMILIES, Layout
from bootbridge.metadata.static import StaticMetadata
from bootbridge.node.configuration import read_configuration
from bootbridge.trust import init_secret

LAYOUT = Layout(4, control_planes=2)
RELEASE = "v1.36.3"
IDENTITIES = {node.name: f"tpm:sha256:{number:064x}" for number, node in enumerate(LAYOUT.all_nodes)}


def policy_document(layout: Layout = LAYOUT) -> bytes:
    return to_yaml(bootstrapper_files.policy(layout, IDENTITIES))


def test_lab_of_blank_instances_has_no_bootstrap_node() -> None:
    assert [node.name for node in LAYOUT.all_nodes] == ["node1", "node2", "node3", "node4"]
    assert LAYOUT.first.name == "node1"
    assert [LAYOUT.may_control(node) for node in LAYOUT.all_nodes] == [True, True, False, False]
    assert Layout(2).first.name == "bootstrap"


@pytest.mark.parametrize("families", list(FAMILIES))
def test_operator_addresses_are_unique(families: str) -> None:
    layout = Layout(8, families, control_planes=1)
    taken = {address for node in layout.all_nodes for address in node.addresses}
    assert not taken & set(layout.operator_addresses)


@pytest.mark.parametrize("control_planes", [-1, 5])
def test_number_of_control_planes_is_limited(control_planes: int) -> None:
    with pytest.raises(OperatorError, match="--control-planes"):
        Layout(4, control_planes=control_planes)


def test_layout_of_blank_instances_is_stored(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab", LAYOUT)
    lab.create_directory()
    assert Lab.open(lab.directory).layout == LAYOUT


@pytest.mark.parametrize("families", list(FAMILIES))
def test_cluster_spec_is_valid(families: str) -> None:
    spec = bootstrapper_files.cluster_spec(Layout(4, families, control_planes=2), RELEASE)
    assert documents.load(ClusterSpec, spec.dump(), "cluster.yaml") == spec


def test_policy_is_valid_and_lists_every_instance_with_its_key() -> None:
    facts = ClusterFacts(RELEASE, "10.0.0.11:6443")
    policy = parse_policy(with_cluster(policy_document(), facts))
    assert {each.name: each.identity for each in policy.instances} == IDENTITIES
    assert [each.role for each in policy.instances].count(Role.CONTROL_PLANE) == 2


def written(tmp_path: Path, name: str, secret_hash: str = "") -> StaticMetadata:
    files = bootstrapper_files.instance_files(LAYOUT, LAYOUT.node(name), IDENTITIES, secret_hash)
    path = tmp_path / "instance.yaml"
    path.write_bytes(files[INSTANCE_METADATA].data)
    return StaticMetadata(path)


def test_metadata_and_policy_agree(tmp_path: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(policy_document())
    for entry in document["instances"]:
        myself = asyncio.run(written(tmp_path, entry["name"]).myself())
        assert (myself.name, str(myself.role)) == (entry["name"], entry["role"])
        assert [str(each) for each in myself.addresses] == entry["addresses"]


def test_only_the_first_instance_has_an_init_secret(tmp_path: Path) -> None:
    hashed = init_secret.hash_of(b"secret")
    hashes = [
        asyncio.run(written(tmp_path, node.name, hashed).init_secret_hash()) for node in LAYOUT.all_nodes
    ]
    assert hashes == [hashed, "", "", ""]


def test_node_configuration_is_valid(tmp_path: Path) -> None:
    files = bootstrapper_files.instance_files(LAYOUT, LAYOUT.first, IDENTITIES, "")
    path = tmp_path / "node.yaml"
    path.write_bytes(files[INSTANCE_CONFIG].data)
    configuration = read_configuration(path)
    assert configuration.issuer.kind == "tpm"
    assert [each.kind for each in configuration.join_verifiers or ()] == ["tpm"]


def test_instance_files_are_readable_only_by_root(tmp_path: Path) -> None:
    assert {
        asset.mode
        for asset in bootstrapper_files.instance_files(LAYOUT, LAYOUT.first, IDENTITIES, "").values()
    } == {0o600}


@pytest.mark.parametrize(
    ("reference", "program"),
    [
        ("localhost/kube-apiserver:v1.36.3", "kube-apiserver"),
        ("localhost/etcd:3.6.8-0", "etcd"),
        ("localhost/pause:3.10.2", "pause"),
        ("localhost/coredns/coredns:v1.13.1", ""),
        ("localhost/kube-proxy:v1.36.3", ""),
        (PAUSE_IMAGE, ""),
        (NODE_IMAGE, ""),
        (TUNNEL_IMAGE, ""),
    ],
)
def test_program_of_a_kubeadm_image(reference: str, program: str) -> None:
    assert kubeadm_program(reference) == program


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["up", "--control-planes", "2"], "--control-planes: requires --bootstrapper"),
        (["up", "--bootstrapper", "--control-planes", "0"], "--control-planes: invalid value 0"),
        (["init"], "no lab found"),
    ],
)
def test_invalid_flags_are_rejected_before_anything_is_created(
    argv: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("bootbridge.lab.components.find", lambda *_, **__: None)
    assert main(["lab", "--dir", str(tmp_path / "lab"), *argv]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "lab").exists()
