"""`bootbridge gather` on the node: the bundle has all sources and no secrets."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootbridge.bootstrap.diagnose.gather import bundle as bundles
from bootbridge.bootstrap.diagnose.gather.bundle import LogBundle
from bootbridge.common.progress import TITLE_COLUMNS
from bootbridge.common.redaction import Redactor
from bootbridge.errors import OperatorError
from bootbridge.kube.errors import KubeError
from tests.bootstrap.diagnose.doctor_node import InstalledNode
from tests.bootstrap.diagnose.log_bundle import holders, unpacked
from tests.support.fake_api_objects import failing
from tests.support.fake_api_server import TOKEN, drop


@pytest.fixture
def node(installed: InstalledNode) -> Iterator[InstalledNode]:
    yield installed
    installed.repair()


def keys(node: InstalledNode) -> list[bytes]:
    paths = node.plan.paths
    return [node.path(path).read_bytes() for path in (paths.server_key, paths.agent_key)]


def leak_secrets(node: InstalledNode) -> None:
    """Writes keys and tokens to logs and other files that are collected."""
    server, agent = keys(node)
    logs = node.path("/var/log/pods/kube-system_konnectivity-server-node0_1/konnectivity-server")
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "0.log").write_bytes(
        b"started\n" + server + b"Authorization: Bearer " + TOKEN.encode() + b"\nended\n"
    )
    node.path(f"{node.plan.paths.state}/notes.json").write_text(json.dumps({"copy": agent.decode()}))
    node.path(f"{node.plan.paths.state}/secret.yaml").write_text(
        json.dumps(node.api.held("secrets", node.plan.namespace, node.plan.secret_name))
    )


def test_the_bundle_has_everything_and_no_secret(node: InstalledNode, tmp_path: Path) -> None:
    """No file contains a key, raw, in PEM or in base64, or the administrator's token."""
    leak_secrets(node)
    out = tmp_path / "bundle.tar.gz"
    assert node.run("gather", "--out", str(out)) == 0, node.output
    files = unpacked(out)
    assert {
        "analysis.txt",
        "analysis.json",
        "doctor.json",
        "gather.json",
        "node/server/admin-status.txt",
        "node/server/health-metrics.txt",
        "node/certificates.json",
        "node/network/ip-address.txt",
        "node/logs/kube-system_konnectivity-server-node0_1/konnectivity-server-0.log",
        "cluster/pods.json",
        "cluster/daemonsets.json",
        "cluster/events.json",
        "cluster/secrets.json",
        "cluster/logs/node1/konnectivity-agent-node1.log",
        f"node/assets{node.plan.paths.plan_record}",
        f"node/assets{node.plan.paths.server_pod}",
        f"node/assets{node.plan.paths.egress_config}",
    } <= set(files)
    for key in keys(node):
        assert holders(files, key) == []
    assert not [name for name, data in files.items() if TOKEN.encode() in data]
    assert not [name for name in files if name.endswith(".key")]
    assert b"ended" in files["node/logs/kube-system_konnectivity-server-node0_1/konnectivity-server-0.log"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert not any(line in node.output for key in keys(node) for line in key.decode().splitlines())


def test_every_source_fits_in_the_column_of_titles(node: InstalledNode, tmp_path: Path) -> None:
    """A longer name would shift its result."""
    out = tmp_path / "b.tar.gz"
    assert node.run("gather", "--out", str(out)) == 0
    files = unpacked(out)
    names = [source["name"] for source in json.loads(files["gather.json"])]
    assert "cluster: webhooks" in names
    assert [name for name in names if len(name) > TITLE_COLUMNS] == []
    webhooks = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
    assert {f"cluster/{kind}.json" for kind in webhooks} <= set(files)


def test_the_analysis_names_the_broken_hop(node: InstalledNode, tmp_path: Path) -> None:
    """In the bundle and in the JSON output."""
    node.path(node.plan.paths.egress_config).unlink()
    out = tmp_path / "bundle.tar.gz"
    assert node.run("gather", "--json", "--out", str(out)) == 0
    assert json.loads(node.stdout)["brokenHop"]["step"] == "egress-config"
    assert b"The first broken hop is the kube-apiserver" in unpacked(out)["analysis.txt"]


def test_a_failed_stage_is_reported_in_one_sentence(node: InstalledNode, tmp_path: Path) -> None:
    folder = node.path("/var/log/openshift")
    folder.mkdir(parents=True, exist_ok=True)
    entries = [
        {"phase": "service start"},
        {"phase": "stage start", "stage": "konnectivity-certs"},
        {"phase": "stage end", "stage": "konnectivity-certs", "result": "failure"},
        {"phase": "service end", "result": "failure"},
    ]
    record = folder / "bootkube.json"
    record.write_text(json.dumps(entries))
    assert node.run("gather", "--out", str(tmp_path / "b.tar.gz")) == 0
    record.unlink()
    assert "failed at stage 'konnectivity-certs'" in node.stdout


def test_a_failed_source_is_listed_and_the_others_are_collected(node: InstalledNode, tmp_path: Path) -> None:
    """First the API rejects only requests for logs, then it drops all connections."""
    error = KubeError(500, "InternalError", "No agent available")
    node.api.faults.append(failing("GET", "/log", error))
    out = tmp_path / "b.tar.gz"
    assert node.run("gather", "--out", str(out), "--json") == 0
    missing = {each["source"]: each["reason"] for each in json.loads(node.stdout)["missing"]}
    assert "No agent available" in missing["cluster: agents' logs"]
    assert "cluster/pods.json" in unpacked(out)
    node.api.faults[:] = [drop]
    assert node.run("gather", "--out", str(out), "--json") == 0
    assert [each["source"] for each in json.loads(node.stdout)["missing"]] == ["cluster"]
    assert b"Not collected: cluster" in unpacked(out)["analysis.txt"]


def test_a_node_without_a_tunnel_is_collected(installed: InstalledNode, tmp_path: Path) -> None:
    """The missing plan record is the broken hop."""
    root = tmp_path / "root"
    root.mkdir()
    assert installed.run("gather", "--root", str(root), "--out", str(tmp_path / "b.tar.gz"), "--json") == 0
    assert json.loads(installed.stdout)["brokenHop"]["step"] == "plan-record"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--out", "/nowhere/b.tar.gz"), ("cannot write /nowhere/b.tar.gz",)),
        (("--dir", "/nowhere"), ("--dir: directory not found: /nowhere",)),
        (("--bootstrap", "10.0.0.1"), ("--bootstrap: requires --dir",)),
        (("--root", "/nowhere"), ("--root",)),
    ],
)
def test_an_invalid_flag_is_a_one_line_error(
    installed: InstalledNode, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """Exit code 1, one line, and no file."""
    assert installed.run("gather", *flags) == 1
    assert [word for word in words if word not in installed.output] == []
    assert installed.output.count("\n") == 1


# --- the archive


def test_only_the_end_of_a_long_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins with a whole line, after a note."""
    monkeypatch.setattr(bundles, "FILE_BYTES_MAX", 20)
    with LogBundle(tmp_path / "b.tar.gz", Redactor()) as bundle:
        bundle.add("log", b"first line\nsecond line\nthird line\n")
        bundle.finish()
    assert unpacked(tmp_path / "b.tar.gz")["log"] == b"[cut: only the end is kept]\nthird line\n"


def test_names_of_sources_cannot_leave_the_bundle(tmp_path: Path) -> None:
    """Equal names get a number."""
    with LogBundle(tmp_path / "b.tar.gz", Redactor()) as bundle:
        for name in ("../../etc/passwd", "/etc/passwd", "a\nb", ".."):
            bundle.add(name, b"x")
        bundle.finish()
    names = set(unpacked(tmp_path / "b.tar.gz"))
    assert names == {"etc/passwd", "etc/passwd.2", "a_b", "unnamed", "gather.json"}


def test_an_unfinished_bundle_leaves_no_file(tmp_path: Path) -> None:
    """Neither with its name nor with a temporary one."""
    with LogBundle(tmp_path / "b.tar.gz", Redactor()) as bundle:
        bundle.add("a", b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_the_name_of_a_key_is_rejected(tmp_path: Path) -> None:
    with (
        LogBundle(tmp_path / "b.tar.gz", Redactor()) as bundle,
        pytest.raises(OperatorError, match="not collected: it contains a key"),
    ):
        bundle.add("tls/agent.key", b"x")


def add_900_bytes(bundle: LogBundle) -> None:
    for number in range(9):
        bundle.add(str(number), b"x" * 100)


def test_a_source_that_exceeds_the_size_limit_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle remains readable."""
    monkeypatch.setattr(bundles, "BUNDLE_BYTES_MAX", 300)
    with LogBundle(tmp_path / "b.tar.gz", Redactor()) as bundle:
        source = bundle.collect("much", add_900_bytes)
        assert "bundle size limit" in source.trouble
        monkeypatch.setattr(bundles, "BUNDLE_BYTES_MAX", 3000)
        bundle.finish()
    assert "0" in unpacked(tmp_path / "b.tar.gz")
