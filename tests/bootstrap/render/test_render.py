"""Runs `bootbridge render`: atomic, idempotent, and never over an operator's edits."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from bootbridge.bootstrap.plan.plan import Flavour, Plan, Platform, ProxyImage
from bootbridge.bootstrap.render import kubeadm, node_files, output_directory
from bootbridge.cli.main import main
from bootbridge.common.files import Asset, Tree
from bootbridge.errors import OperatorError

OURS = ProxyImage("bootbridge", "registry.example/bootbridge:1")
KUBEADM = ["--flavour", "kubeadm", "--image", OURS.reference]
PLANS = [Plan(), Plan(flavour=Flavour.KUBEADM, image=OURS), Plan(platform=Platform.AWS, infra_id="demo-1")]


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def render(output: Path, *argv: str) -> int:
    return main(["render", "--output", str(output), *argv])


# --- content


@pytest.mark.parametrize("plan", PLANS, ids=["openshift", "kubeadm", "aws"])
def test_node_files_are_absolute_sorted_and_without_keys(plan: Plan) -> None:
    """The node issues the certificates."""
    tree = node_files.node_files(plan)
    assert list(tree) == sorted(tree)
    assert all(path.startswith("/") for path in tree)
    # The script mentions keys; only a PEM block would be one.
    assert not any(b"PRIVATE KEY-----\nMI" in asset.data for asset in tree.values())
    assert node_files.node_files(plan) == tree, "rendering is deterministic"


def test_files_of_an_openshift_node() -> None:
    """Plan, templates, egress selector, override, and the script that bootkube.sh calls."""
    plan = Plan()
    templates = {f"{plan.paths.templates}/{name}.yaml" for name in TEMPLATES}
    needed = {
        plan.paths.plan_record,
        plan.paths.egress_config,
        plan.paths.config_override,
        plan.paths.hook_script,
    }
    assert node_files.node_files(plan).keys() >= templates | needed


def test_files_for_kubeadm() -> None:
    """A patch, but no script: `bootbridge up` does its work."""
    plan = PLANS[1]
    tree = node_files.output_files(plan)
    assert node_files.KUBEADM_PATCH in tree
    assert plan.paths.hook_script.removeprefix("/") not in tree
    assert not any("override" in path for path in tree)


TEMPLATES = ("namespace", "agent-secret", "agent-daemonset", "server-pod")


@pytest.mark.parametrize("plan", PLANS, ids=["openshift", "kubeadm", "aws"])
def test_every_file_has_a_purpose(plan: Plan) -> None:
    """And every YAML file is valid."""
    for path, asset in node_files.output_files(plan).items():
        assert node_files.purpose(plan, path), path
        if path.endswith(".yaml"):
            assert yaml.safe_load(asset.data)


# --- the command


def test_files_are_written_with_their_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At their node paths below the directory. A table lists them."""
    output = tmp_path / "tunnel"
    assert render(output) == 0
    tree = node_files.output_files(Plan())
    assert files_below(output).keys() == {*tree, output_directory.RECORD}
    table = capsys.readouterr().out
    for path, asset in tree.items():
        file = output / path
        assert file.read_bytes() == asset.data
        assert stat.S_IMODE(file.stat().st_mode) == asset.mode
        assert path in table
    assert [path.name for path in tmp_path.iterdir()] == ["tunnel"], "nothing is left beside it"


def test_json_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Has path, mode, state and purpose of every file."""
    assert render(tmp_path / "tunnel", "--json", *KUBEADM) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["path"] for row in rows} == set(node_files.output_files(PLANS[1]))
    assert {row["state"] for row in rows} == {"written"}
    assert all(set(row) == {"path", "mode", "state", "purpose"} for row in rows)


def test_networks_come_from_the_install_config(tmp_path: Path) -> None:
    config = tmp_path / "install-config.yaml"
    config.write_text(
        "apiVersion: v1\nplatform: {none: {}}\n"
        "networking: {clusterNetwork: [{cidr: 10.200.0.0/16, hostPrefix: 26}]}\n"
    )
    assert render(tmp_path / "tunnel", "--install-config", str(config)) == 0
    daemonset = tmp_path / "tunnel" / Plan().paths.templates[1:] / "agent-daemonset.yaml"
    assert "cidr=$(POD_IP)/26" in daemonset.read_text()


def test_the_tunnel_is_added_to_a_kubeadm_configuration(tmp_path: Path) -> None:
    """With mode 0600, because it may contain tokens. The given file stays unchanged."""
    mine = tmp_path / "mine.yaml"
    text = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n"
    mine.write_text(text)
    assert render(tmp_path / "tunnel", *KUBEADM, "--kubeadm-config", str(mine)) == 0
    merged = tmp_path / "tunnel" / node_files.KUBEADM_CONFIG
    assert merged.read_bytes() == kubeadm.merge(text.encode(), PLANS[1])
    assert stat.S_IMODE(merged.stat().st_mode) == 0o600
    assert mine.read_text() == text


def test_a_kubeadm_configuration_is_rejected_for_openshift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would have no effect."""
    assert "--kubeadm-config" in rejection(tmp_path / "tunnel", capsys, "--kubeadm-config", "x")


def test_rendering_again_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All states are `unchanged`."""
    output = tmp_path / "tunnel"
    render(output)
    before = files_below(output)
    capsys.readouterr()
    assert render(output, "--json") == 0
    assert files_below(output) == before
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"unchanged"}


def test_another_plan_updates_the_directory(tmp_path: Path) -> None:
    """Files of the old plan are removed, with their empty directories."""
    output = tmp_path / "tunnel"
    render(output)
    assert render(output, *KUBEADM) == 0
    assert files_below(output).keys() == {*node_files.output_files(PLANS[1]), output_directory.RECORD}
    assert not (output / "opt").exists()


def test_an_edited_file_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A message names it."""
    output = tmp_path / "tunnel"
    render(output)
    changed = output / Plan().paths.templates[1:] / "namespace.yaml"
    changed.write_text("mine: true\n")
    note = output / "NOTES"
    note.write_text("my own\n")
    capsys.readouterr()
    assert render(output, "--agent-port", "9091") == 0
    assert changed.read_text() == "mine: true\n"
    assert note.read_text() == "my own\n"
    assert "namespace.yaml was edited, not overwritten" in capsys.readouterr().err
    assert "9091" in (changed.parent / "server-pod.yaml").read_text()
    # A later run keeps it, too.
    assert render(output) == 0
    assert changed.read_text() == "mine: true\n"
    assert render(output, "--force") == 0
    assert changed.read_bytes() == node_files.node_files(Plan())["/" + str(changed.relative_to(output))].data
    assert note.read_text() == "my own\n"


def test_edited_files_are_read_back(tmp_path: Path) -> None:
    output = tmp_path / "tunnel"
    render(output)
    path = Plan().paths.templates[1:] + "/namespace.yaml"
    (output / path).write_text("mine: true\n")
    tree = output_directory.read(output)
    assert tree[path].data == b"mine: true\n"
    assert tree.keys() == node_files.output_files(Plan()).keys()
    assert tree[Plan().paths.hook_script[1:]].mode == 0o555


# --- errors


def rejection(output: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Returns the error: one line on stderr, nothing on stdout, exit code 1."""
    assert render(output, *argv) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_directory_with_other_files_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with --force. Nothing in it is changed."""
    (tmp_path / "precious").write_text("x")
    for argv in ([], ["--force"]):
        assert "--output" in rejection(tmp_path, capsys, *argv)
    assert files_below(tmp_path) == {"precious": b"x"}


def test_a_file_as_directory_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert "not a directory" in rejection(file, capsys)


def test_a_missing_parent_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be a typo, so it is not created."""
    assert str(tmp_path / "a") in rejection(tmp_path / "a" / "b", capsys)
    assert not (tmp_path / "a").exists()


def test_the_current_directory_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is replaced as a whole, and the shell would stay in the old one."""
    monkeypatch.chdir(tmp_path)
    assert "current directory not allowed" in rejection(Path("."), capsys)


@pytest.mark.parametrize(
    "record", [b"", b"[]", b'{"version": 9, "sha256": {}}', b'{"version": 1, "sha256": {"../x": "0"}}']
)
def test_an_invalid_record_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: bytes
) -> None:
    """Without it, edited files cannot be recognised."""
    output = tmp_path / "tunnel"
    output.mkdir()
    (output / output_directory.RECORD).write_bytes(record)
    assert output_directory.RECORD in rejection(output, capsys)
    assert files_below(output) == {output_directory.RECORD: record}


def test_an_invalid_flag_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--validity" in rejection(tmp_path / "tunnel", capsys, "--validity", "1s")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_directory(tmp_path: Path) -> None:
    """Here, a new directory has the name of an operator's file."""
    output = tmp_path / "tunnel"
    old: Tree = {"a": Asset(b"1"), "b": Asset(b"2")}
    output_directory.write(old, output)
    (output / "c").write_text("a file, no directory")
    before = files_below(output)
    with pytest.raises(OperatorError):
        output_directory.write({"a": Asset(b"new"), "c/d": Asset(b"4")}, output)
    assert files_below(output) == before
    assert [path.name for path in tmp_path.iterdir()] == ["tunnel"]


def test_a_symbolic_link_to_the_directory_is_kept(tmp_path: Path) -> None:
    """Its target is replaced."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real")
    output_directory.write({"a": Asset(b"1")}, link)
    assert link.is_symlink()
    assert (tmp_path / "real" / "a").read_bytes() == b"1"
    assert os.stat(tmp_path / "real").st_mode & 0o777 == 0o777 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_bootstrap_in_place_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As by `inject`: there is no second control plane. Nothing is written."""
    config = tmp_path / "install-config.yaml"
    config.write_text(
        "apiVersion: v1\nplatform: {none: {}}\nbootstrapInPlace: {installationDisk: /dev/sda}\n"
    )

    assert render(tmp_path / "tunnel", "--install-config", str(config)) == 1

    assert "bootstrapInPlace: is a bootstrap in place" in capsys.readouterr().err
    assert not (tmp_path / "tunnel").exists()
