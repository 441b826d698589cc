"""The tunnel goes into a bootstrap.ign and out again, and the installer's bytes survive both."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import subprocess
from collections.abc import Iterator
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


def as_found(base: Plan) -> Plan:
    return base


def injected(data: bytes, plan: Plan | None = None) -> bytes:
    return inject.inject(data, lambda base: plan or base, NOW, "b.ign").document


def refusal(data: bytes) -> str:
    with pytest.raises(OperatorError) as refused:
        injected(data)
    return str(refused.value)


# --- in and out


@pytest.mark.parametrize("release", scripts.RELEASES)
@pytest.mark.parametrize("formatting", FORMATTINGS)
def test_removal_gives_back_the_original_bytes(formatting: str, release: str) -> None:
    """Whatever the release and the formatting."""
    original = FORMATTINGS[formatting](document(release=release))
    with_tunnel = injected(original)
    assert with_tunnel != original
    assert inject.remove(with_tunnel, "b.ign") == original


@pytest.mark.parametrize("formatting", FORMATTINGS)
def test_injecting_twice_is_injecting_once(formatting: str) -> None:
    """Byte for byte."""
    once = injected(FORMATTINGS[formatting](document()))
    assert injected(once) == once


def test_another_plan_replaces_the_earlier_injection() -> None:
    """As if the earlier one had never been."""
    original = compact(document())
    other = Plan(protocol=Protocol.HTTP_CONNECT, image=ProxyImage("bootbridge", "registry.example/b:1"))
    assert injected(injected(original), other) == injected(original, other)


def test_removal_from_a_file_without_a_tunnel_changes_nothing() -> None:
    """It may be asked for twice."""
    assert inject.remove(compact(document()), "b.ign") == compact(document())


def _anywhere(value: Any, where: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The document with members that nobody knows, in any object of its upper levels."""
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
def test_any_ignition_document_survives_the_round_trip(
    data: st.DataObject, files: dict[str, bytes], release: str, indent: Any, spaces: Any, ascii_only: bool
) -> None:
    """inject then remove is nothing; inject twice is inject once; what was in it is still in it."""
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


def survives(data: bytes) -> None:
    """Taken, or refused in words; any other exception fails the test."""
    for attempt in (injected, lambda document: inject.remove(document, "b.ign")):
        with contextlib.suppress(OperatorError):
            attempt(data)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_bytes_are_taken_or_refused_in_words(data: st.DataObject) -> None:
    """A good file with a few bytes changed, before or after an injection."""
    good = injected(compact(document())) if data.draw(st.booleans()) else compact(document())
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 40)))
    survives(good[:start] + data.draw(st.binary(max_size=30)) + good[end:])


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every member and element."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield (*here, key)
        yield from places(child, (*here, key))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_document_is_taken_or_refused_in_words(data: st.DataObject) -> None:
    """A good document with something else in the place of any one value."""
    value = json.loads(compact(document()))
    *way, last = data.draw(st.sampled_from(list(places(value))))
    owner = value
    for key in way:
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
    survives(json.dumps(value).encode())


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_cluster_config_is_taken_or_refused_in_words(content: bytes) -> None:
    """What the file says of its cluster may be anything, too."""
    for index in (2, 3):
        value = document()
        value["storage"]["files"][index]["contents"]["source"] = documents.data_url(content)
        survives(compact(value))


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        leaves, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3)
    )
)
def test_any_record_is_taken_or_refused_in_words(record: Any) -> None:
    """Also one that somebody else wrote."""
    ignition = Ignition.parse(compact(document()), "b.ign")
    wrapped = {"version": 1, "originalSHA256": "", "originalLength": record, "edits": record}
    for value in (
        record,
        wrapped,
        {**wrapped, "originalLength": 7, "edits": [{"start": record, "length": 1}]},
    ):
        with pytest.raises(OperatorError):
            injection_record.restore(ignition, json.dumps(value).encode(), "b.ign")


# --- what is in it


def test_the_tunnel_is_in_the_file_with_its_modes() -> None:
    """All assets of the plan, and nothing of the installer's is gone."""
    original = Ignition.parse(compact(document()), "b.ign")
    result = inject.inject(original.data, as_found, NOW, "b.ign")
    there = Ignition.parse(result.document, "b.ign")
    for path, asset in node_files.node_files(result.plan).items():
        assert (there.content(path), there.files[path].mode) == (asset.data, asset.mode)
    assert list(there.files)[: len(original.files)] == list(original.files)
    assert set(there.files) - set(original.files) == set(result.files)
    assert there.files[BOOTKUBE].mode == 0o555
    assert there.content(BOOTKUBE) == bootkube.patch(scripts.script("4.22"), result.plan)
    assert there.files[RECORD].mode == 0o600
    assert there.units == original.units


def test_the_plan_comes_from_the_cluster_inside() -> None:
    """Platform and networks from the install-config, infraID from the infrastructure object."""
    result = inject.inject(compact(document()), as_found, NOW, "b.ign")
    assert (result.plan.platform, result.plan.infra_id) == (Platform.GCP, "test-x7k2p")
    assert [str(network) for network in result.plan.networks.machine] == ["192.168.126.0/24"]
    assert [(str(each.cidr), each.host_prefix) for each in result.plan.networks.cluster] == [
        ("10.132.0.0/14", 24)
    ]
    recorded = Ignition.parse(result.document, "b.ign").content(OPENSHIFT_PATHS.plan_record)
    assert plan_record.load(recorded or b"", "plan.json") == result.plan


def test_a_file_without_cluster_facts_gets_the_defaults() -> None:
    """An ignition file made by hand may have none."""
    value = document()
    del value["storage"]["files"][2:4]
    assert inject.inject(compact(value), as_found, NOW, "b.ign").plan == Plan()


def test_the_injected_script_runs_with_the_injected_hooks_in_reach(tmp_path: Path) -> None:
    """bootkube.sh of the injected file sources the very script that was injected beside it."""
    there = Ignition.parse(injected(compact(document(release="5.0"))), "b.ign")
    node = Node(tmp_path)
    for path in (OPENSHIFT_PATHS.plan_record, OPENSHIFT_PATHS.config_override):
        node.put(path, there.content(path) or b"")
    # The functions are defined by the real script; here they only say that they were called.
    hooks = there.content(Plan().paths.hook_script) or b""
    spoken = b"".join(
        b'bootbridge_%s() { echo %s >> "$CALLS"; }\n' % (name, name)
        for name in (b"setup", b"manifests", b"cleanup")
    )
    node.put(Plan().paths.hook_script, hooks + spoken)
    assert node.run(node.put(BOOTKUBE, there.content(BOOTKUBE) or b"")) == 0, node.output
    assert [call for call in node.calls() if " " not in call] == ["setup", "manifests", "cleanup"]
    render = next(call for call in node.calls() if "operator render" in call)
    override = Plan().paths.config_override_seen_by_render
    assert f"--config-override-files={override}" in render
    assert (node.root / "opt/openshift" / override.removeprefix("/assets/")).exists()


def test_the_cleanup_unit_stops_bootkube_and_calls_the_cleanup() -> None:
    """A bootkube.sh that is started again and again would lay the tunnel anew."""
    there = Ignition.parse(injected(compact(document())), "b.ign")
    unit = (there.content(Plan().paths.cleanup_unit) or b"").decode()
    assert "Conflicts=bootkube.service" in unit
    assert f"ExecStart={Plan().paths.hook_script} cleanup" in unit
    assert there.files[Plan().paths.hook_script].mode & 0o111


# --- what is refused


def expired_pem() -> bytes:
    return Authority.create("old", validity=timedelta(seconds=-5)).cert_pem


REFUSED = {
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
    "an empty script": (document(b""), "has no contents"),
    "no script": ({"ignition": {"version": "3.2.0"}}, "holds no /usr/local/bin/bootkube.sh"),
    "a shim": (
        {"ignition": {"version": "3.2.0", "config": {"replace": {"source": "https://b/x?signature=SECRET"}}}},
        "is a shim",
    ),
    "an expired certificate": (
        document(files={"/opt/openshift/tls/root-ca.crt": expired_pem()}),
        "have expired",
    ),
    "a taken path": (document(files={OPENSHIFT_PATHS.plan_record: b"{}"}), "is there already"),
    "a script from elsewhere": (None, "fetched from elsewhere"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_tunnel_does_not_fit_into_is_refused_with_the_reason(case: str) -> None:
    """By the file's name, and without a secret that may stand in it."""
    value, reason = REFUSED[case]
    if value is None:
        value = document()
        value["storage"]["files"][1]["contents"]["source"] = "https://example/bootkube.sh?SECRET"
    text = refusal(compact(value))
    assert reason in text
    assert "SECRET" not in text


@pytest.mark.parametrize(
    "text", ["{", "platform: [", "!!int ''", "!!timestamp x", "apiVersion: v1\nplatform: {mars: {}}"]
)
def test_a_broken_install_config_inside_is_refused_by_path(text: str) -> None:
    """Rather than guessed at."""
    value = document()
    config_map = json.dumps({"data": {"install-config": text}}).encode()
    value["storage"]["files"][2]["contents"]["source"] = documents.data_url(config_map)
    assert inject.CLUSTER_CONFIG in refusal(compact(value))


def test_a_trust_bundle_may_hold_what_has_expired() -> None:
    """It is the operator's, and the cluster comes up with it; `check` warns."""
    bundle = {"/etc/pki/ca-trust/source/anchors/ca.crt": expired_pem()}
    assert injected(compact(document(files=bundle)))


def test_a_unit_of_a_bootstrap_in_place_is_enough() -> None:
    """Whatever the script says."""
    value = document()
    value["systemd"]["units"].append({"name": "install-to-disk.service", "contents": ""})
    assert "install-to-disk.service" in refusal(compact(value))


def test_kubeadm_has_no_ignition_file() -> None:
    """Its tunnel is laid by `up`."""
    plan = Plan(flavour=Flavour.KUBEADM, image=ProxyImage("bootbridge", "x"))
    with pytest.raises(OperatorError, match="--flavour"):
        injected(compact(document()), plan)


def test_a_file_that_was_reformatted_is_refused() -> None:
    """Its original cannot be given back, and nothing is guessed."""
    reformatted = json.dumps(json.loads(injected(compact(document()))), indent=2).encode()
    for attempt in (injected, lambda data: inject.remove(data, "b.ign")):
        with pytest.raises(OperatorError, match="changed or reformatted after the injection"):
            attempt(reformatted)


def test_a_tunnel_without_its_record_is_refused() -> None:
    """What cannot be undone is not built upon."""
    value = json.loads(injected(compact(document())))
    value["storage"]["files"] = [entry for entry in value["storage"]["files"] if entry["path"] != RECORD]
    assert "its record" in refusal(compact(value))


# --- the command


def ign(directory: Path, value: Any | None = None) -> Path:
    path = directory / "bootstrap.ign"
    path.write_bytes(compact(document() if value is None else value))
    path.chmod(0o640)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_command_works_in_place_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mode and owner stay, and no temporary file does."""
    path = ign(tmp_path)
    if os.geteuid() == 0:
        os.chown(path, 1234, 4321)
    before, was = digest(path), path.stat()
    assert main(["inject", str(path)]) == 0
    assert "the tunnel is in" in capsys.readouterr().out
    assert digest(path) != before
    now = path.stat()
    assert (stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid) == (0o640, was.st_uid, was.st_gid)
    assert main(["inject", str(path), "--remove"]) == 0
    assert digest(path) == before
    assert os.listdir(tmp_path) == ["bootstrap.ign"]


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """But says what it would."""
    path = ign(tmp_path)
    before = digest(path)
    assert main(["inject", str(path), "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["changed"], facts["written"], facts["platform"]) == (True, False, "gcp")
    assert digest(path) == before


def test_output_goes_elsewhere_if_asked(tmp_path: Path) -> None:
    """No more readable than the original, which stays."""
    path, other = ign(tmp_path), tmp_path / "other.ign"
    before = digest(path)
    assert main(["inject", str(path), "-o", str(other), "--platform", "none"]) == 0
    assert digest(path) == before
    assert stat.S_IMODE(other.stat().st_mode) == 0o640
    assert b"" != other.read_bytes() != path.read_bytes()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """The file behind it is changed."""
    path, link = ign(tmp_path), tmp_path / "link.ign"
    link.symlink_to(path)
    assert main(["inject", str(link)]) == 0
    assert link.is_symlink()
    assert RECORD.encode() in path.read_bytes()


def test_flags_win_over_what_the_file_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest still comes from it."""
    path = ign(tmp_path)
    assert main(["inject", str(path), "--platform", "aws", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["platform"], facts["infraID"]) == ("aws", "test-x7k2p")


@pytest.mark.parametrize("value", [document(scripts.in_place()), [], {"ignition": {"version": "2.2.0"}}])
def test_a_refusal_is_one_line_and_writes_nothing(
    value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the file named, nothing beside it."""
    path = ign(tmp_path, value)
    before = digest(path)
    assert main(["inject", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith(f"bootbridge inject: {path}: ")
    assert digest(path) == before
    assert os.listdir(tmp_path) == ["bootstrap.ign"]


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name."""
    assert main(["inject", str(tmp_path / "none.ign")]) == 1
    assert "none.ign" in capsys.readouterr().err


def test_rendered_files_go_in_as_their_reader_left_them(tmp_path: Path) -> None:
    """render, change, inject."""
    path, tunnel = ign(tmp_path), tmp_path / "tunnel"
    assert main(["render", "--output", str(tunnel), "--platform", "none"]) == 0
    template = f"{OPENSHIFT_PATHS.templates}/namespace.yaml"
    changed = tunnel / template.lstrip("/")
    changed.write_bytes(changed.read_bytes() + b"# mine\n")
    assert main(["inject", str(path), "--assets", str(tunnel)]) == 0
    there = Ignition.parse(path.read_bytes(), "b.ign")
    assert there.content(template) == changed.read_bytes()
    assert main(["inject", str(path), "--assets", str(tunnel), "--platform", "aws"]) == 1


# --- an outside judge


JUDGE = PEERS / "ignition-validate"


@pytest.mark.interop
@pytest.mark.parametrize("formatting", FORMATTINGS)
def test_coreos_own_parser_accepts_what_was_injected(formatting: str, tmp_path: Path) -> None:
    """Ignition itself reads the file as a node would, and refuses one with a path given twice."""
    with_tunnel, broken = tmp_path / "injected.ign", tmp_path / "broken.ign"
    with_tunnel.write_bytes(injected(FORMATTINGS[formatting](document(release="5.0"))))
    value = json.loads(with_tunnel.read_bytes())
    value["storage"]["files"].append(value["storage"]["files"][-1])
    broken.write_bytes(compact(value))
    said = subprocess.run(
        [JUDGE, with_tunnel, broken], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    assert said[0] == f"ok {with_tunnel}"
    assert said[1].startswith(f"refused {broken}")
