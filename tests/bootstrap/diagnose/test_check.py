"""`check`: every fault is reported with its name and a fix; a correct tunnel passes all checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootbridge.bootstrap.diagnose import check
from bootbridge.bootstrap.diagnose.check import CheckResult, CheckVerdict, ignition_file, tree
from bootbridge.bootstrap.ignition import bootkube, inject
from bootbridge.bootstrap.plan.cloud import CloudSettings
from bootbridge.bootstrap.plan.paths import OPENSHIFT_PATHS
from bootbridge.bootstrap.plan.plan import Plan, ProxyImage
from bootbridge.bootstrap.render import node_files
from bootbridge.cli.main import main
from bootbridge.common.files import Asset
from bootbridge.errors import OperatorError
from bootbridge.trust.authority import Authority
from tests.support import bootkube_scripts as scripts
from tests.support import ignition_documents as documents
from tests.support.ignition_documents import compact, document

NOW = datetime.now(UTC)
PLAN = Plan()
EXPIRED = Authority.create("x", validity=timedelta(-1)).cert_pem
TEMPLATES = OPENSHIFT_PATHS.templates


def injected(value: Any | None = None) -> bytes:
    return inject.inject(
        compact(document() if value is None else value), lambda base: base, NOW, "b.ign"
    ).document


def verdicts(results: list[CheckResult]) -> dict[str, CheckVerdict]:
    return {result.name: result.verdict for result in results}


def failing(results: list[CheckResult]) -> set[str]:
    return {result.name for result in results if result.verdict is CheckVerdict.FAIL}


def the(name: str, results: list[CheckResult]) -> CheckResult:
    return next(result for result in results if result.name == name)


# --- an ignition file


def test_a_freshly_injected_file_passes_every_check() -> None:
    results = check.of_ignition(injected(), NOW, "b.ign")
    assert {result.verdict for result in results} == {CheckVerdict.PASS}
    assert {*tree.CHECKS, *ignition_file.CHECKS, "anchors", "removable", "certificates-valid"} <= set(
        verdicts(results)
    )
    assert all(result.evidence for result in results)


def test_names_are_unique() -> None:
    results = check.of_ignition(injected(), NOW, "b.ign")
    assert len(verdicts(results)) == len(results)


def test_a_file_without_a_tunnel_fails_only_the_check_injected() -> None:
    """Checks of the injection are not run."""
    results = check.of_ignition(compact(document()), NOW, "b.ign")
    assert failing(results) == {"injected"}
    assert the("egress-config", results).verdict is CheckVerdict.NOT_RUN
    assert the("anchors", results).verdict is CheckVerdict.PASS


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (document(scripts.in_place()), "not-in-place"),
        (document(scripts.with_upstream_tunnel()), "no-other-tunnel"),
        (document(b"#!/bin/sh\n"), "anchors"),
        ({"ignition": {"version": "3.2.0"}}, "bootkube-script"),
        ({"ignition": {"version": "3.2.0", "config": {"replace": {"source": "https://x"}}}}, "not-a-pointer"),
        (
            document(files={"/opt/openshift/tls/a.crt": EXPIRED}),
            "certificates-valid",
        ),
    ],
)
def test_a_file_that_inject_rejects_fails(value: Any, name: str) -> None:
    results = check.of_ignition(compact(value), NOW, "b.ign")
    assert name in failing(results)
    assert the(name, results).fix


def test_an_expired_trust_bundle_is_a_warning() -> None:
    """The cluster may start with it."""
    bundle = {"/etc/pki/ca-trust/source/anchors/ca.crt": EXPIRED}
    results = check.of_ignition(injected(document(files=bundle)), NOW, "b.ign")
    assert the("trust-bundles", results).verdict is CheckVerdict.WARN
    assert not failing(results)


def test_certificates_are_checked_against_the_current_time() -> None:
    """The installer's certificates are valid for a day; the file may be older."""
    files = {"/opt/openshift/tls/a.crt": Authority.create("x").cert_pem}
    data = injected(document(files=files))
    now = datetime.now(UTC)
    assert not failing(check.of_ignition(data, now, "b.ign"))
    assert failing(check.of_ignition(data, now + timedelta(days=2), "b.ign")) == {"certificates-valid"}


def test_a_reformatted_file_is_not_removable() -> None:
    """The hash of the original does not match."""
    data = json.dumps(json.loads(injected()), indent=1).encode()
    assert failing(check.of_ignition(data, NOW, "b.ign")) == {"removable"}


def test_any_change_of_the_injected_script_is_detected() -> None:
    """The file is still removable."""
    data = injected()
    ignition = inject.Ignition.parse(data, "b.ign")
    script = ignition.content(bootkube.PATH) or b""
    entry = ignition.files[bootkube.PATH].source
    changed = script.replace(b"bootbridge_manifests\n", b"bootbridge_manifestx\n")
    assert len(changed) == len(script)
    results = check.of_ignition(
        data.replace((entry or "").encode(), documents.data_url(changed).encode()), NOW, "b"
    )
    assert failing(results) == {"bootkube-hooks"}


def test_a_file_that_is_not_ignition_is_rejected() -> None:
    with pytest.raises(OperatorError, match=r"^b\.ign: "):
        check.of_ignition(b"{}", NOW, "b.ign")


# --- the files of the tunnel


def changed(path: str, change: Callable[[bytes], bytes], plan: Plan = PLAN) -> tree.PlannedTree:
    files = node_files.node_files(plan)
    return tree.PlannedTree(plan, {**files, path: Asset(change(files[path].data), files[path].mode)})


def edited(path: str, edit: Callable[[Any], object]) -> tree.PlannedTree:
    def change(data: bytes) -> bytes:
        value = yaml.safe_load(data)
        edit(value)
        return yaml.safe_dump(value).encode()

    return changed(path, change)


def arguments(manifest: Any) -> list[str]:
    found: list[str] = manifest["spec"]["containers"][0]["args"]
    return found


POD, DAEMONSET = f"{TEMPLATES}/server-pod.yaml", f"{TEMPLATES}/agent-daemonset.yaml"
SECRET, NAMESPACE = f"{TEMPLATES}/agent-secret.yaml", f"{TEMPLATES}/namespace.yaml"
EGRESS, OVERRIDE = OPENSHIFT_PATHS.egress_config, OPENSHIFT_PATHS.config_override
KEY = Authority.create("x").key_pem
FAULTS: dict[str, tuple[tree.PlannedTree, str]] = {
    "no selection for the cluster": (edited(EGRESS, lambda d: d["egressSelections"].pop(0)), "egress-config"),
    "an unknown protocol": (
        edited(EGRESS, lambda d: d["egressSelections"][0]["connection"].update(proxyProtocol="CONNECT")),
        "egress-config",
    ),
    "the other protocol": (
        edited(EGRESS, lambda d: d["egressSelections"][0]["connection"].update(proxyProtocol="HTTPConnect")),
        "egress-config",
    ),
    "the host's path of the socket": (
        changed(EGRESS, lambda d: d.replace(b"kubernetes/config/", b"kubernetes/bootstrap-configs/")),
        "egress-config",
    ),
    "broken YAML": (changed(EGRESS, lambda d: b"{"), "egress-config"),
    "the field that does not exist": (
        edited(OVERRIDE, lambda d: d.update(egressSelectorConfiguration={})),
        "config-override",
    ),
    "no flag": (
        edited(OVERRIDE, lambda d: d.pop("apiServerArguments")),
        "config-override",
    ),
    "a template in the override": (changed(OVERRIDE, lambda d: d + b"# {{ .X }}\n"), "config-override"),
    "the server on another port": (
        changed(POD, lambda d: d.replace(b"--agent-port=8091", b"--agent-port=8092")),
        "server-pod",
    ),
    "a server off the host network": (
        edited(POD, lambda d: d["spec"].pop("hostNetwork")),
        "server-pod",
    ),
    "a server without a readiness probe": (
        edited(POD, lambda d: d["spec"]["containers"][0].pop("readinessProbe")),
        "server-pod",
    ),
    "a server in another mode": (
        changed(POD, lambda d: d.replace(b"--mode=grpc", b"--mode=http-connect")),
        "server-pod",
    ),
    "agents in a namespace that removal does not cover": (
        edited(DAEMONSET, lambda d: d["metadata"].update(namespace="kube-system")),
        "agent-daemonset",
    ),
    "agents without the label": (edited(DAEMONSET, lambda d: d["metadata"].pop("labels")), "agent-daemonset"),
    "agents without tolerations": (
        edited(DAEMONSET, lambda d: d["spec"]["template"]["spec"].pop("tolerations")),
        "agent-daemonset",
    ),
    "agents on the host's network": (
        edited(DAEMONSET, lambda d: d["spec"]["template"]["spec"].update(hostNetwork=True)),
        "agent-daemonset",
    ),
    "a secret of another name": (edited(SECRET, lambda d: d["metadata"].update(name="x")), "agent-secret"),
    "a namespace without the label": (edited(NAMESPACE, lambda d: d["metadata"].pop("labels")), "namespace"),
    "an unknown placeholder": (changed(POD, lambda d: d + b"# @BOOTBRIDGE_X@\n"), "placeholders"),
    "a placeholder replaced by hand": (
        changed(SECRET, lambda d: d.replace(b"@BOOTBRIDGE_AGENT_KEY_BASE64@", b"eA==")),
        "placeholders",
    ),
    "a private key": (changed(PLAN.paths.hook_script, lambda d: d + b"K='" + KEY + b"'\n"), "no-private-key"),
    "a private key as base64": (
        changed(SECRET, lambda d: d + b"# " + documents.data_url(KEY).encode() + b"\n"),
        "no-private-key",
    ),
    "a script that does not parse": (changed(PLAN.paths.hook_script, lambda d: d + b"if\n"), "hook-script"),
    "a script without its functions": (changed(PLAN.paths.hook_script, lambda d: b"true\n"), "hook-script"),
    "a script that asks for no image": (changed(PLAN.paths.hook_script, lambda d: b"true\n"), "image"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_by_the_check_of_that_name(fault: str) -> None:
    subject, name = FAULTS[fault]
    results = tree.of_tree(subject)
    assert name in failing(results)
    assert the(name, results).fix
    assert the(name, results).evidence


def test_a_missing_file_fails_by_name() -> None:
    files = node_files.node_files(PLAN)
    for path in set(files) - {PLAN.paths.cleanup_unit, PLAN.paths.plan_record}:
        left = {other: asset for other, asset in files.items() if other != path}
        results = tree.of_tree(tree.PlannedTree(PLAN, left))
        assert path in the("files-complete", results).evidence


def test_a_file_that_others_may_read_fails() -> None:
    """Modes may be stricter than planned, never wider."""
    files = node_files.node_files(PLAN)
    wide = {**files, OVERRIDE: Asset(files[OVERRIDE].data, 0o666)}
    strict = {**files, OVERRIDE: Asset(files[OVERRIDE].data, 0o400)}
    assert failing(tree.of_tree(tree.PlannedTree(PLAN, wide))) == {"modes"}
    assert failing(tree.of_tree(tree.PlannedTree(PLAN, strict))) == set()


def test_a_harmless_change_is_a_warning() -> None:
    results = tree.of_tree(changed(NAMESPACE, lambda data: data + b"# mine\n"))
    assert the("as-rendered", results).verdict is CheckVerdict.WARN
    assert not failing(results)


def test_overlapping_networks_fail(tmp_path: Path) -> None:
    """The plan accepts them, the cluster does not."""
    tunnel = tmp_path / "tunnel"
    words = ["--machine-network", "172.30.0.0/20", "--cluster-network", "100.64.0.0/14,23"]
    assert main(["render", "--output", str(tunnel), *words]) == 0
    results = check.of_directory(tunnel)
    assert failing(results) == {"networks-disjoint"}
    assert the("networks-not-reserved", results).verdict is CheckVerdict.WARN


# --- a rendered directory


@pytest.mark.parametrize(
    "words", [[], ["--flavour", "kubeadm", "--image", "registry.example/b:1"], ["--protocol", "HTTPConnect"]]
)
def test_a_freshly_rendered_directory_passes(words: list[str], tmp_path: Path) -> None:
    """Checks that do not apply to a flavour are not run."""
    assert main(["render", "--output", str(tmp_path / "tunnel"), *words]) == 0
    results = check.of_directory(tmp_path / "tunnel")
    skipped = {name for name, verdict in verdicts(results).items() if verdict is not CheckVerdict.PASS}
    assert skipped == ({"config-override", "hook-script"} if "kubeadm" in words else set())
    assert {the(name, results).verdict for name in skipped} <= {CheckVerdict.NOT_RUN}


def test_our_own_image_is_named(tmp_path: Path) -> None:
    plan = Plan(image=ProxyImage("bootbridge", "registry.example/b:1"))
    results = tree.of_tree(tree.PlannedTree(plan, node_files.node_files(plan)))
    assert "registry.example/b:1" in the("image", results).evidence
    assert not failing(results)


@pytest.mark.parametrize(
    ("release", "verdict", "evidence"),
    [
        ("4.9", CheckVerdict.FAIL, "not in the payload of release 4.9"),
        ("4.12", CheckVerdict.PASS, "4.14 before 2023-12-01: yes: health port closed by nft"),
        ("4.20", CheckVerdict.PASS, "of the release: 4.14 since 2023-12-01, to 4.22: yes"),
        ("5.1", CheckVerdict.PASS, "of the release: 4.23, 5.0 and later: yes"),
    ],
)
def test_a_known_release_decides_about_the_payloads_programs(
    release: str, verdict: CheckVerdict, evidence: str
) -> None:
    """Not a list of all releases."""
    plan = Plan(cloud=CloudSettings(release=release))
    found = the("image", tree.of_tree(tree.PlannedTree(plan, node_files.node_files(plan))))
    assert found.verdict is verdict
    assert found.evidence.endswith(evidence)
    assert ("--image" in found.fix) == (verdict is CheckVerdict.FAIL)


# --- the command


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    found = {"good": tmp_path / "good.ign", "bare": tmp_path / "bare.ign"}
    found["good"].write_bytes(injected())
    found["bare"].write_bytes(compact(document()))
    return found


def test_exit_codes(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """0 or 2, and 1 where nothing could be checked."""
    assert main(["check", str(files["good"])]) == 0
    assert main(["check", str(files["bare"])]) == 2
    assert main(["check", str(files["bare"]) + ".none"]) == 1
    assert main(["check"]) == 1
    assert main(["check", "--live", str(files["good"])]) == 1
    assert main(["check", "--root", "/", str(files["good"])]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_the_table_shows_name_verdict_evidence_and_fix(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", str(files["bare"])])
    lines = capsys.readouterr().out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.split()[:2] == ["fail", "injected"])
    assert lines[at + 1].strip() == "fix: bootbridge inject FILE"
    answer = next(line for line in lines if " checks: " in line)
    assert "1 fail" in answer
    assert lines[-2:] == ["Next:", f"  bootbridge check {files['bare']}  check again after the fix"]


def test_json_has_the_same_results(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--json", str(files["bare"])])
    document = json.loads(capsys.readouterr().out)
    assert document["failed"] is True
    wanted = check.of_ignition(files["bare"].read_bytes(), NOW, "b.ign")
    assert [(each["name"], each["verdict"]) for each in document["checks"]] == [
        (result.name, result.verdict) for result in wanted
    ]
    assert {"name", "verdict", "evidence", "fix"} == set(document["checks"][0])
