"""Runs patched copies of bootkube.sh: the added lines are at the right places and run at the right time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bootbridge.bootstrap.ignition import bootkube
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.errors import OperatorError
from tests.support import bootkube_scripts as scripts
from tests.support.bootkube_run import Node

PLAN = Plan()
SHAPES = {
    **{release: scripts.script(release) for release in scripts.RELEASES},
    "upstream tunnel": scripts.with_upstream_tunnel(),
    "in place": scripts.in_place(),
}
# Fakes of the functions in the real script, which only record their calls.
HOOKS = b"""\
for hook in setup manifests cleanup; do
    eval "bootbridge_$hook() { echo bootbridge_$hook >> \\"\\$CALLS\\"; }"
done
"""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.put(PLAN.paths.hook_script, HOOKS)
    return node


def patched_on(node: Node, release: str) -> Path:
    return node.put(bootkube.PATH, bootkube.patch(scripts.script(release), PLAN))


def steps(node: Node) -> list[str]:
    words = {
        "etcd render": "etcd",
        "operator render": "apiserver",
        "cluster-bootstrap start": "cluster-bootstrap",
    }
    return [next((short for text, short in words.items() if text in call), call) for call in node.calls()]


@pytest.mark.parametrize("release", scripts.RELEASES)
def test_the_hooks_run_in_order(node: Node, release: str) -> None:
    """Setup before the kube-apiserver is rendered, manifests before cluster-bootstrap, cleanup last."""
    assert node.run(patched_on(node, release)) == 0, node.output
    assert steps(node) == [
        "etcd",
        "bootbridge_setup",
        "apiserver",
        "bootbridge_manifests",
        "cluster-bootstrap",
        "bootbridge_cleanup",
    ]
    assert (node.root / "opt/openshift/.bootkube.done").exists()


@pytest.mark.parametrize("release", scripts.RELEASES)
def test_the_render_command_gets_the_override_and_keeps_its_arguments(node: Node, release: str) -> None:
    """Also in releases where the command ends with a backslash."""
    plain = Node(node.root.parent / "plain")
    assert plain.run(plain.put(bootkube.PATH, scripts.script(release))) == 0, plain.output
    assert node.run(patched_on(node, release)) == 0, node.output
    before, after = (
        next(call for call in run.calls() if "operator render" in call).replace(str(run.root), "").split()
        for run in (plain, node)
    )
    flag = f"--config-override-files={PLAN.paths.config_override_seen_by_render}"
    assert [word for word in after if word != flag] == before
    assert after[after.index("render") + 1] == flag


def test_a_failed_bootstrap_calls_the_hooks_again_but_renders_once(node: Node) -> None:
    """systemd restarts the script. Cleanup runs only after success."""
    script = patched_on(node, "4.22")
    node.fail.touch()
    assert node.run(script) != 0
    assert "bootbridge_cleanup" not in steps(node)
    assert not (node.root / "opt/openshift/.bootkube.done").exists()
    node.fail.unlink()
    assert node.run(script) == 0, node.output
    assert steps(node) == [
        *("etcd", "bootbridge_setup", "apiserver", "bootbridge_manifests", "cluster-bootstrap"),
        *("bootbridge_setup", "bootbridge_manifests", "cluster-bootstrap", "bootbridge_cleanup"),
    ]


def test_a_failing_hook_stops_the_script(node: Node) -> None:
    """Otherwise webhooks would time out later."""
    node.put(PLAN.paths.hook_script, b"bootbridge_setup() { return 3; }\n")
    assert node.run(patched_on(node, "4.22")) != 0
    assert steps(node) == ["etcd"]


@pytest.mark.parametrize("shape", SHAPES)
def test_all_other_lines_stay_unchanged(shape: str) -> None:
    given = SHAPES[shape].split(b"\n")
    lines = bootkube.patch(SHAPES[shape], PLAN).split(b"\n")
    left = iter(lines)
    assert all(line in left for line in given), "the original's lines are there, in order"
    assert len(lines) - len(given) == 4 + 1 + 3 + 3


@pytest.mark.parametrize("shape", SHAPES)
def test_bash_parses_the_patched_script(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "bootkube.sh"
    path.write_bytes(bootkube.patch(SHAPES[shape], PLAN))
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


@pytest.mark.parametrize("anchor", bootkube.ANCHORS, ids=lambda anchor: anchor.name[:2])
def test_a_missing_anchor_is_rejected(anchor: bootkube.Anchor) -> None:
    """Also if the line is only part of another one."""
    script = scripts.script("4.22").replace(anchor.line.encode(), b"# " + anchor.line.encode())
    with pytest.raises(OperatorError, match=rf"anchor {anchor.name[:2]} .* not found"):
        bootkube.patch(script, PLAN)


@pytest.mark.parametrize("anchor", bootkube.ANCHORS, ids=lambda anchor: anchor.name[:2])
def test_a_duplicate_anchor_is_rejected(anchor: bootkube.Anchor) -> None:
    """The error has the line numbers."""
    script = scripts.script("4.22") + b"\t" + anchor.line.encode() + b"\n"
    with pytest.raises(OperatorError, match=rf"anchor {anchor.name[:2]} .* is ambiguous: lines \d+, \d+"):
        bootkube.patch(script, PLAN)


def test_anchors_out_of_order_are_rejected() -> None:
    """Each line occurs once, but the script does something else."""
    start, end = (anchor.line.encode() for anchor in (bootkube.ANCHORS[0], bootkube.ANCHORS[3]))
    script = scripts.script("4.22").replace(start, b"X").replace(end, start).replace(b"X", end)
    with pytest.raises(OperatorError, match="is out of order"):
        bootkube.patch(script, PLAN)


def test_no_final_newline_is_added() -> None:
    patched = bootkube.patch(scripts.script("4.22").rstrip(b"\n"), PLAN)
    assert patched.endswith(b'complete"')


@pytest.mark.parametrize("shape", SHAPES)
def test_variants_of_the_script_are_recognised(shape: str) -> None:
    """Bootstrap in place, and the installer's tunnel."""
    assert bootkube.runs_in_place(SHAPES[shape]) == (shape == "in place")
    assert bootkube.override_lines(SHAPES[shape]) == (
        [scripts.UPSTREAM_OVERRIDE] if shape == "upstream tunnel" else []
    )
    assert not bootkube.is_patched(SHAPES[shape])
    assert bootkube.is_patched(bootkube.patch(SHAPES[shape], PLAN))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_last_hook_does_not_separate_a_comment_from_its_command(shape: str) -> None:
    lines = bootkube.patch(SHAPES[shape], PLAN).decode().splitlines()
    at = lines.index("touch /opt/openshift/.bootkube.done")
    assert lines[at - 1] == "# Workaround: progress.service waits for this file."
    assert lines[at - 3] == "bootbridge_cleanup"
