"""`bootbridge render`: the whole tree or nothing, again and again, and never over a reader's changes."""

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


# --- what is in the tree


@pytest.mark.parametrize("plan", PLANS, ids=["openshift", "kubeadm", "aws"])
def test_the_tree_on_the_node_is_absolute_sorted_and_without_secrets(plan: Plan) -> None:
    """Certificates are made on the node; the tree can be shown to anybody."""
    tree = node_files.node_files(plan)
    assert list(tree) == sorted(tree)
    assert all(path.startswith("/") for path in tree)
    # The script speaks of keys; only a whole block would be one.
    assert not any(b"PRIVATE KEY-----\nMI" in asset.data for asset in tree.values())
    assert node_files.node_files(plan) == tree, "rendering is deterministic"


def test_openshift_gets_everything_that_its_bootstrap_node_needs() -> None:
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


def test_kubeadm_gets_its_patch_and_no_scripts() -> None:
    """There `bootbridge up` does the work, and kubeadm starts the kube-apiserver."""
    plan = PLANS[1]
    tree = node_files.output_files(plan)
    assert node_files.KUBEADM_PATCH in tree
    assert plan.paths.hook_script.removeprefix("/") not in tree
    assert not any("override" in path for path in tree)


TEMPLATES = ("namespace", "agent-secret", "agent-daemonset", "server-pod")


@pytest.mark.parametrize("plan", PLANS, ids=["openshift", "kubeadm", "aws"])
def test_every_file_says_what_it_is_for(plan: Plan) -> None:
    """And every YAML file is one."""
    for path, asset in node_files.output_files(plan).items():
        assert node_files.purpose(plan, path), path
        if path.endswith(".yaml"):
            assert yaml.safe_load(asset.data)


# --- the verb


def test_the_verb_writes_the_tree_with_its_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Node paths below the directory, and a table of what was written."""
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


def test_the_verb_tells_scripts_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Path, mode, what happened, and what it is for."""
    assert render(tmp_path / "tunnel", "--json", *KUBEADM) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["path"] for row in rows} == set(node_files.output_files(PLANS[1]))
    assert {row["state"] for row in rows} == {"written"}
    assert all(set(row) == {"path", "mode", "state", "purpose"} for row in rows)


def test_an_install_config_decides_about_the_tree(tmp_path: Path) -> None:
    """Its networks are in the manifests."""
    config = tmp_path / "install-config.yaml"
    config.write_text(
        "apiVersion: v1\nplatform: {none: {}}\n"
        "networking: {clusterNetwork: [{cidr: 10.200.0.0/16, hostPrefix: 26}]}\n"
    )
    assert render(tmp_path / "tunnel", "--install-config", str(config)) == 0
    daemonset = tmp_path / "tunnel" / Plan().paths.templates[1:] / "agent-daemonset.yaml"
    assert "cidr=$(POD_IP)/26" in daemonset.read_text()


def test_a_kubeadm_configuration_comes_back_with_the_tunnel_in_it(tmp_path: Path) -> None:
    """For its owner alone: bootstrap tokens may stand in it; the one given stays as it is."""
    mine = tmp_path / "mine.yaml"
    text = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n"
    mine.write_text(text)
    assert render(tmp_path / "tunnel", *KUBEADM, "--kubeadm-config", str(mine)) == 0
    merged = tmp_path / "tunnel" / node_files.KUBEADM_CONFIG
    assert merged.read_bytes() == kubeadm.merge(text.encode(), PLANS[1])
    assert stat.S_IMODE(merged.stat().st_mode) == 0o600
    assert mine.read_text() == text


def test_a_kubeadm_configuration_makes_no_sense_for_openshift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would silently do nothing there."""
    assert "--kubeadm-config" in refused(tmp_path / "tunnel", capsys, "--kubeadm-config", "x")


def test_rendering_again_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a byte; and it says so."""
    output = tmp_path / "tunnel"
    render(output)
    before = files_below(output)
    capsys.readouterr()
    assert render(output, "--json") == 0
    assert files_below(output) == before
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"unchanged"}


def test_another_plan_brings_the_directory_up_to_date(tmp_path: Path) -> None:
    """Files of the old plan go, with the directories that they leave empty."""
    output = tmp_path / "tunnel"
    render(output)
    assert render(output, *KUBEADM) == 0
    assert files_below(output).keys() == {*node_files.output_files(PLANS[1]), output_directory.RECORD}
    assert not (output / "opt").exists()


def test_a_file_that_the_reader_changed_is_kept_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is what rendering is for; the reader is told."""
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
    assert "namespace.yaml is kept" in capsys.readouterr().err
    assert "9091" in (changed.parent / "server-pod.yaml").read_text()
    # Kept once, it is still the reader's the next time.
    assert render(output) == 0
    assert changed.read_text() == "mine: true\n"
    assert render(output, "--force") == 0
    assert changed.read_bytes() == node_files.node_files(Plan())["/" + str(changed.relative_to(output))].data
    assert note.read_text() == "my own\n"


def test_a_changed_tree_is_read_back_as_it_is(tmp_path: Path) -> None:
    """Whoever uses the directory gets the reader's version."""
    output = tmp_path / "tunnel"
    render(output)
    path = Plan().paths.templates[1:] + "/namespace.yaml"
    (output / path).write_text("mine: true\n")
    tree = output_directory.read(output)
    assert tree[path].data == b"mine: true\n"
    assert tree.keys() == node_files.output_files(Plan()).keys()
    assert tree[Plan().paths.hook_script[1:]].mode == 0o555


# --- what is refused


def refused(output: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """One line on standard error, nothing on standard output, exit code 1."""
    assert render(output, *argv) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in it is touched, not even with --force."""
    (tmp_path / "precious").write_text("x")
    for argv in ([], ["--force"]):
        assert "--output" in refused(tmp_path, capsys, *argv)
    assert files_below(tmp_path) == {"precious": b"x"}


def test_a_file_as_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It stays what it was."""
    file = tmp_path / "file"
    file.write_text("x")
    assert "no directory" in refused(file, capsys)


def test_a_parent_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not made up: a typo would else scatter directories."""
    assert str(tmp_path / "a") in refused(tmp_path / "a" / "b", capsys)
    assert not (tmp_path / "a").exists()


def test_the_directory_one_stands_in_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is replaced as a whole, and one would stand in the old one."""
    monkeypatch.chdir(tmp_path)
    assert "the directory you are in" in refused(Path("."), capsys)


@pytest.mark.parametrize(
    "record", [b"", b"[]", b'{"version": 9, "sha256": {}}', b'{"version": 1, "sha256": {"../x": "0"}}']
)
def test_a_damaged_record_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: bytes
) -> None:
    """Whose files these are cannot be known."""
    output = tmp_path / "tunnel"
    output.mkdir()
    (output / output_directory.RECORD).write_bytes(record)
    assert output_directory.RECORD in refused(output, capsys)
    assert files_below(output) == {output_directory.RECORD: record}


def test_a_wrong_flag_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything is known before the first byte is written."""
    assert "--validity" in refused(tmp_path / "tunnel", capsys, "--validity", "1s")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_the_middle_leaves_the_old_tree(tmp_path: Path) -> None:
    """Here a path of the new tree runs through a file of the reader's."""
    output = tmp_path / "tunnel"
    old: Tree = {"a": Asset(b"1"), "b": Asset(b"2")}
    output_directory.write(old, output)
    (output / "c").write_text("a file, no directory")
    before = files_below(output)
    with pytest.raises(OperatorError):
        output_directory.write({"a": Asset(b"new"), "c/d": Asset(b"4")}, output)
    assert files_below(output) == before
    assert [path.name for path in tmp_path.iterdir()] == ["tunnel"]


def test_a_link_to_the_directory_stays_a_link(tmp_path: Path) -> None:
    """Its target is what gets replaced."""
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
