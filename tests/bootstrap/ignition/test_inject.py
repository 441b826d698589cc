"""Adds the tunnel to a bootstrap.ign and removes it; the installer's bytes stay unchanged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bootbridge.bootstrap.ignition import bootkube, inject, injection_record
from bootbridge.bootstrap.ignition.document import Ignition
from bootbridge.bootstrap.plan import record as plan_record
from bootbridge.bootstrap.plan.paths import OPENSHIFT_PATHS
from bootbridge.bootstrap.plan.plan import Flavour, Plan, Platform, Protocol, ProxyImage
from bootbridge.bootstrap.render import node_files
from bootbridge.cli.main import main
from bootbridge.errors import OperatorError
from bootbridge.trust.authority import Authority
from tests.support import bootkube_scripts as scripts
from tests.support import ignition_documents as documents
from tests.support.bootkube_run import Node
from tests.support.ignition_documents import BOOTKUBE, FORMATTINGS, compact, document
from tests.support.process_program import PEERS

NOW = datetime.now(UTC)
RECORD = OPENSHIFT_PATHS.injection_record


def unchanged(base: Plan) -> Plan:
    return base


def injected(data: bytes, plan: Plan | None = None) -> bytes:
    return inject.inject(data, lambda base: plan or base, NOW, "b.ign").document


def rejection(data: bytes) -> str:
    with pytest.raises(OperatorError) as raised:
        injected(data)
    return str(raised.value)


# --- inject and remove


@pytest.mark.parametrize("release", scripts.RELEASES)
@pytest.mark.parametrize("formatting", FORMATTINGS)
def test_removal_gives_back_the_original_bytes(formatting: str, release: str) -> None:
    original = FORMATTINGS[formatting](document(release=release))
    with_tunnel = injected(original)
    assert with_tunnel != original
    assert inject.remove(with_tunnel, "b.ign") == original


@pytest.mark.parametrize("formatting", FORMATTINGS)
def test_injecting_twice_gives_the_same_bytes(formatting: str) -> None:
    once = injected(FORMATTINGS[formatting](document()))
    assert injected(once) == once


def test_another_plan_replaces_the_earlier_injection() -> None:
    original = compact(document())
    other = Plan(protocol=Protocol.HTTP_CONNECT, image=ProxyImage("bootbridge", "registry.example/b:1"))
    assert injected(injected(original), other) == injected(original, other)


def test_removal_from_a_file_without_a_tunnel_changes_nothing() -> None:
    assert inject.remove(compact(document()), "b.ign") == compact(document())


def _anywhere(value: Any, where: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Adds unknown members to the document."""
    return st.fixed_dictionaries({}, optional={"zzz": where, "ångström": where}).map(
        lambda extra: {**extra, **value}
    )


paths = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12).map(
    lambda text: f"/srv/x{text}"
)
more_files = st.dictionaries(paths, st.binary(max_size=60), max_size=5)
leaves = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=10) | st.lists(st.integers(), max_size=3)
)
spacings = st.text(" \t\n\r", max_size=3)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    files=more_files,
    release=st.sampled_from(scripts.RELEASES),
    indent=st.sampled_from([None, 0, 1, 4, "\t"]),
    spaces=st.tuples(spacings, spacings, spacings, spacings),
    ascii_only=st.booleans(),
)
def test_inject_and_remove_of_generated_documents(
    data: st.DataObject, files: dict[str, bytes], release: str, indent: Any, spaces: Any, ascii_only: bool
) -> None:
    """Removal restores the bytes, injecting twice equals injecting once, and all files stay."""
    distinct = {os.path.normpath(path): content for path, content in files.items()}
    value = data.draw(_anywhere(document(files=distinct, release=release), leaves))
    value["storage"]["files"] = data.draw(st.permutations(value["storage"]["files"]))
    value = dict(data.draw(st.permutations(list(value.items()))))
    before, comma, colon, after = spaces
    text = json.dumps(
        value, indent=indent, separators=(f"{comma},{comma}", f"{colon}:"), ensure_ascii=ascii_only
    )
    original = f"{before}{text}{after}".encode()
    once = injected(original)
    assert inject.remove(once, "b.ign") == original
    assert injected(once) == once
    there = Ignition.parse(once, "b.ign")
    assert {path: there.content(path) for path in distinct} == distinct


def accept_or_reject(data: bytes) -> None:
    """Fails on any exception other than OperatorError."""
    for attempt in (injected, lambda document: inject.remove(document, "b.ign")):
        with contextlib.suppress(OperatorError):
            attempt(data)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_fuzzed_bytes(data: st.DataObject) -> None:
    """A valid file with a few bytes changed, before or after an injection."""
    good = injected(compact(document())) if data.draw(st.booleans()) else compact(document())
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 40)))
    accept_or_reject(good[:start] + data.draw(st.binary(max_size=30)) + good[end:])


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every member and element."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield (*here, key)
        yield from places(child, (*here, key))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_fuzzed_values(data: st.DataObject) -> None:
    """A valid document with one value replaced."""
    value = json.loads(compact(document()))
    *parents, last = data.draw(st.sampled_from(list(places(value))))
    owner = value
    for key in parents:
        owner = owner[key]
    strange = [
        "data:,%",
        "data:;base64,\ud800",
        "/",
        "3.9.9",
        -1,
        1e300,
        10**30,
        [[]],
        [{}],
        {"path": "/"},
        "\x00",
    ]
    owner[last] = data.draw(leaves | st.sampled_from(strange))
    accept_or_reject(json.dumps(value).encode())


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_fuzzed_cluster_config(content: bytes) -> None:
    for index in (2, 3):
        value = document()
        value["storage"]["files"][index]["contents"]["source"] = documents.data_url(content)
        accept_or_reject(compact(value))


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        leaves, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3)
    )
)
def test_fuzzed_injection_record(record: Any) -> None:
    ignition = Ignition.parse(compact(document()), "b.ign")
    wrapped = {"version": 1, "originalSHA256": "", "originalLength": record, "edits": record}
    for value in (
        record,
        wrapped,
        {**wrapped, "originalLength": 7, "edits": [{"start": record, "length": 1}]},
    ):
        with pytest.raises(OperatorError):
            injection_record.restore(ignition, json.dumps(value).encode(), "b.ign")


# --- content


def test_all_files_are_added_with_their_modes() -> None:
    """The installer's files stay."""
    original = Ignition.parse(compact(document()), "b.ign")
    result = inject.inject(original.data, unchanged, NOW, "b.ign")
    there = Ignition.parse(result.document, "b.ign")
    for path, asset in node_files.node_files(result.plan).items():
        assert (there.content(path), there.files[path].mode) == (asset.data, asset.mode)
    assert list(there.files)[: len(original.files)] == list(original.files)
    assert set(there.files) - set(original.files) == set(result.files)
    assert there.files[BOOTKUBE].mode == 0o555
    assert there.content(BOOTKUBE) == bootkube.patch(scripts.script("4.22"), result.plan)
    assert there.files[RECORD].mode == 0o600
    assert there.units == original.units


def test_the_plan_comes_from_the_document() -> None:
    """Platform and networks from the install-config, infraID from the infrastructure object."""
    result = inject.inject(compact(document()), unchanged, NOW, "b.ign")
    assert (result.plan.platform, result.plan.infra_id) == (Platform.GCP, "test-x7k2p")
    assert [str(network) for network in result.plan.networks.machine] == ["192.168.126.0/24"]
    assert [(str(each.cidr), each.host_prefix) for each in result.plan.networks.cluster] == [
        ("10.132.0.0/14", 24)
    ]
    recorded = Ignition.parse(result.document, "b.ign").content(OPENSHIFT_PATHS.plan_record)
    assert plan_record.load(recorded or b"", "plan.json") == result.plan


def test_a_file_without_install_config_gets_the_defaults() -> None:
    """A hand-written ignition file may have none."""
    value = document()
    del value["storage"]["files"][2:4]
    assert inject.inject(compact(value), unchanged, NOW, "b.ign").plan == Plan()


def test_the_injected_script_sources_the_injected_hooks(tmp_path: Path) -> None:
    """And calls the functions in order."""
    there = Ignition.parse(injected(compact(document(release="5.0"))), "b.ign")
    node = Node(tmp_path)
    for path in (OPENSHIFT_PATHS.plan_record, OPENSHIFT_PATHS.config_override):
        node.put(path, there.content(path) or b"")
    # Fakes override the real functions and only record their calls.
    hooks = there.content(Plan().paths.hook_script) or b""
    fakes = b"".join(
        b'bootbridge_%s() { echo %s >> "$CALLS"; }\n' % (name, name)
        for name in (b"setup", b"manifests", b"cleanup")
    )
    node.put(Plan().paths.hook_script, hooks + fakes)
    assert node.run(node.put(BOOTKUBE, there.content(BOOTKUBE) or b"")) == 0, node.output
    assert [call for call in node.calls() if " " not in call] == ["setup", "manifests", "cleanup"]
    render = next(call for call in node.calls() if "operator render" in call)
    override = Plan().paths.config_override_seen_by_render
    assert f"--config-override-files={override}" in render
    assert (node.root / "opt/openshift" / override.removeprefix("/assets/")).exists()


def test_the_cleanup_unit_stops_bootkube_and_calls_the_cleanup() -> None:
    """A restarted bootkube.sh would install the tunnel again."""
    there = Ignition.parse(injected(compact(document())), "b.ign")
    unit = (there.content(Plan().paths.cleanup_unit) or b"").decode()
    assert "Conflicts=bootkube.service" in unit
    assert f"ExecStart={Plan().paths.hook_script} cleanup --abandoned\n" in unit
    assert there.files[Plan().paths.hook_script].mode & 0o111


def test_the_unit_that_outlives_bootkube_is_injected() -> None:
    """It neither stops bootkube nor is started at boot: the clean-up enables it."""
    there = Ignition.parse(injected(compact(document())), "b.ign")
    unit = (there.content(Plan().paths.cleanup_retry_unit) or b"").decode()
    assert f"ExecStart={Plan().paths.hook_script} cleanup-retry\n" in unit
    assert "Conflicts" not in unit
    assert "WantedBy=multi-user.target" in unit
    assert not [path for path in there.files if ".wants/" in path]


# --- rejected files


def expired_pem() -> bytes:
    return Authority.create("old", validity=timedelta(seconds=-5)).cert_pem


REJECTED = {
    "a bootstrap in place": (document(scripts.in_place()), "BOOTSTRAP_INPLACE=true"),
    "its script": (document(files={"/usr/local/bin/bootstrap-in-place.sh": b""}), "bootstrap in place"),
    "the installer's own tunnel": (document(scripts.with_upstream_tunnel()), scripts.UPSTREAM_OVERRIDE),
    "the installer's own hooks": (
        document(
            files={"/usr/local/bin/konnectivity.sh": b"record_service_stage_start konnectivity-certs\n"}
        ),
        "/usr/local/bin/konnectivity.sh",
    ),
    "a missing anchor": (document(b"#!/bin/bash\n"), "anchor A1"),
    "an empty script": (document(b""), "is empty"),
    "no script": ({"ignition": {"version": "3.2.0"}}, "/usr/local/bin/bootkube.sh not found"),
    "a pointer": (
        {"ignition": {"version": "3.2.0", "config": {"replace": {"source": "https://b/x?signature=SECRET"}}}},
        "is a pointer",
    ),
    "an expired certificate": (
        document(files={"/opt/openshift/tls/root-ca.crt": expired_pem()}),
        "1 expired certificates",
    ),
    "a duplicate path": (document(files={OPENSHIFT_PATHS.plan_record: b"{}"}), "duplicate path"),
    "a script from a URL": (None, "is fetched from a URL"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejected_files(case: str) -> None:
    """The error has the reason, but no secret."""
    value, reason = REJECTED[case]
    if value is None:
        value = document()
        value["storage"]["files"][1]["contents"]["source"] = "https://example/bootkube.sh?SECRET"
    text = rejection(compact(value))
    assert reason in text
    assert "SECRET" not in text


@pytest.mark.parametrize(
    "text", ["{", "platform: [", "!!int ''", "!!timestamp x", "apiVersion: v1\nplatform: {mars: {}}"]
)
def test_an_invalid_install_config_is_rejected(text: str) -> None:
    """The error has its path."""
    value = document()
    config_map = json.dumps({"data": {"install-config": text}}).encode()
    value["storage"]["files"][2]["contents"]["source"] = documents.data_url(config_map)
    assert inject.CLUSTER_CONFIG in rejection(compact(value))


def test_an_expired_certificate_in_a_trust_bundle_is_accepted() -> None:
    """The cluster boots with it. `check` warns."""
    bundle = {"/etc/pki/ca-trust/source/anchors/ca.crt": expired_pem()}
    assert injected(compact(document(files=bundle)))


def test_a_unit_of_a_bootstrap_in_place_is_rejected() -> None:
    value = document()
    value["systemd"]["units"].append({"name": "install-to-disk.service", "contents": ""})
    assert "install-to-disk.service" in rejection(compact(value))


def test_kubeadm_is_rejected() -> None:
    """`up` installs its tunnel."""
    plan = Plan(flavour=Flavour.KUBEADM, image=ProxyImage("bootbridge", "x"))
    with pytest.raises(OperatorError, match="--flavour"):
        injected(compact(document()), plan)


def test_a_reformatted_file_is_rejected() -> None:
    """Its original cannot be restored."""
    reformatted = json.dumps(json.loads(injected(compact(document()))), indent=2).encode()
    for attempt in (injected, lambda data: inject.remove(data, "b.ign")):
        with pytest.raises(OperatorError, match="changed or reformatted after the injection"):
            attempt(reformatted)


def test_a_tunnel_without_its_record_is_rejected() -> None:
    value = json.loads(injected(compact(document())))
    value["storage"]["files"] = [entry for entry in value["storage"]["files"] if entry["path"] != RECORD]
    assert "without its record" in rejection(compact(value))


# --- the command


def ign(directory: Path, value: Any | None = None) -> Path:
    path = directory / "bootstrap.ign"
    path.write_bytes(compact(document() if value is None else value))
    path.chmod(0o640)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_inject_in_place_and_remove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mode and owner stay, and no temporary file is left."""
    path = ign(tmp_path)
    if os.geteuid() == 0:
        os.chown(path, 1234, 4321)
    before, was = digest(path), path.stat()
    assert main(["inject", str(path)]) == 0
    assert "tunnel injected" in capsys.readouterr().out
    assert digest(path) != before
    now = path.stat()
    assert (stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid) == (0o640, was.st_uid, was.st_gid)
    assert main(["inject", str(path), "--remove"]) == 0
    assert digest(path) == before
    assert os.listdir(tmp_path) == ["bootstrap.ign"]


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """But prints what it would do."""
    path = ign(tmp_path)
    before = digest(path)
    assert main(["inject", str(path), "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["changed"], facts["written"], facts["platform"]) == (True, False, "gcp")
    assert digest(path) == before


def test_output_to_another_file(tmp_path: Path) -> None:
    """It has the mode of the original, which stays unchanged."""
    path, other = ign(tmp_path), tmp_path / "other.ign"
    before = digest(path)
    assert main(["inject", str(path), "-o", str(other), "--platform", "none"]) == 0
    assert digest(path) == before
    assert stat.S_IMODE(other.stat().st_mode) == 0o640
    assert b"" != other.read_bytes() != path.read_bytes()


def test_a_symbolic_link_is_kept(tmp_path: Path) -> None:
    """Its target is changed."""
    path, link = ign(tmp_path), tmp_path / "link.ign"
    link.symlink_to(path)
    assert main(["inject", str(link)]) == 0
    assert link.is_symlink()
    assert RECORD.encode() in path.read_bytes()


def test_flags_have_precedence_over_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ign(tmp_path)
    assert main(["inject", str(path), "--platform", "aws", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["platform"], facts["infraID"]) == ("aws", "test-x7k2p")


@pytest.mark.parametrize("value", [document(scripts.in_place()), [], {"ignition": {"version": "2.2.0"}}])
def test_an_error_is_one_line_and_writes_nothing(
    value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 1 and the file's name."""
    path = ign(tmp_path, value)
    before = digest(path)
    assert main(["inject", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"bootbridge inject: {path}: ")
    assert digest(path) == before
    assert os.listdir(tmp_path) == ["bootstrap.ign"]


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error has its name."""
    assert main(["inject", str(tmp_path / "none.ign")]) == 1
    assert "none.ign" in capsys.readouterr().err


def test_edited_rendered_files_are_injected(tmp_path: Path) -> None:
    """render, edit, inject --assets; flags of a plan are rejected there."""
    path, tunnel = ign(tmp_path), tmp_path / "tunnel"
    assert main(["render", "--output", str(tunnel), "--platform", "none"]) == 0
    template = f"{OPENSHIFT_PATHS.templates}/namespace.yaml"
    changed = tunnel / template.lstrip("/")
    changed.write_bytes(changed.read_bytes() + b"# mine\n")
    assert main(["inject", str(path), "--assets", str(tunnel)]) == 0
    there = Ignition.parse(path.read_bytes(), "b.ign")
    assert there.content(template) == changed.read_bytes()
    assert main(["inject", str(path), "--assets", str(tunnel), "--platform", "aws"]) == 1


# --- CoreOS Ignition


VALIDATOR = PEERS / "ignition-validate"


@pytest.mark.interop
@pytest.mark.parametrize("formatting", FORMATTINGS)
def test_coreos_ignition_accepts_the_injected_file(formatting: str, tmp_path: Path) -> None:
    """And rejects a file with a duplicate path."""
    with_tunnel, broken = tmp_path / "injected.ign", tmp_path / "broken.ign"
    with_tunnel.write_bytes(injected(FORMATTINGS[formatting](document(release="5.0"))))
    value = json.loads(with_tunnel.read_bytes())
    value["storage"]["files"].append(value["storage"]["files"][-1])
    broken.write_bytes(compact(value))
    lines = subprocess.run(
        [VALIDATOR, with_tunnel, broken], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    assert lines[0] == f"ok {with_tunnel}"
    assert lines[1].startswith(f"refused {broken}")


@pytest.mark.parametrize(
    ("line", "addresses"),
    [
        (b'    --node-ip="192.168.126.7" \\\n    --address="192.168.126.7" \\\n', ["192.168.126.7"]),
        (b'    --node-ip="fd00:1::7" \\\n', ["fd00:1::7"]),
        (b"    --node-ip=:: \\\n", []),
        (b"    --node-ip=${NODE_IP} \\\n", []),
        (b"", []),
    ],
)
def test_the_address_that_the_installer_was_given_is_used(line: bytes, addresses: list[str]) -> None:
    """OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP, in kubelet.sh as in the installer of main. `::` is none."""
    kubelet = b"#!/usr/bin/env bash\n/usr/bin/kubelet \\\n" + line + b"    --v=2\n"
    data = compact(document(files={"/usr/local/bin/kubelet.sh": kubelet}))

    plan = inject.read_plan(Ignition.parse(data, "bootstrap.ign"), "bootstrap.ign")

    assert list(map(str, plan.node_ips)) == addresses


@pytest.mark.parametrize(
    ("channel", "release"), [("stable-4.14", "4.14"), ("eus-4.16", "4.16"), ("stable-scos-4", ""), ("", "")]
)
def test_the_release_is_that_of_the_installers_channel(channel: str, release: str) -> None:
    """It decides the names of the installer's security groups."""
    version = f"kind: ClusterVersion\nspec:\n  channel: {channel}\n  clusterID: x\n".encode()
    data = compact(document(files={"/opt/openshift/manifests/cvo-overrides.yaml": version}))

    plan = inject.read_plan(Ignition.parse(data, "bootstrap.ign"), "bootstrap.ign")

    assert plan.cloud.release == release


def released(channel: str) -> bytes:
    version = f"kind: ClusterVersion\nspec:\n  channel: {channel}\n".encode()
    return compact(document(files={"/opt/openshift/manifests/cvo-overrides.yaml": version}))


def test_a_release_without_the_payloads_programs_needs_an_image() -> None:
    """Otherwise bootkube.sh would fail on the node, again and again."""
    with pytest.raises(OperatorError, match=r"not in the payload of release 4\.9") as caught:
        inject.inject(released("stable-4.9"), lambda plan: plan, NOW, "bootstrap.ign")
    assert "--image=REFERENCE" in str(caught.value)
    ours = ProxyImage("bootbridge", "registry.example/b:1")
    for data, image in ((released("stable-4.9"), ours), (released("stable-4.11"), ProxyImage())):
        inject.inject(data, lambda plan, image=image: replace(plan, image=image), NOW, "bootstrap.ign")
