"""Adds the egress setting to kube-apiserver manifests and removes it."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.bootstrap.plan.plan import Flavour, Plan, ProxyImage
from bootbridge.bootstrap.render import apiserver_manifest, kubeadm
from bootbridge.errors import OperatorError
from tests.support.bootstrap_node import MANIFEST

PLAN = Plan(flavour=Flavour.KUBEADM, image=ProxyImage("bootbridge", "image"))
SETTING = apiserver_manifest.egress_setting(PLAN)
TEXT = MANIFEST.format(port=6443, backend=1).encode()
NAME = "kube-apiserver.yaml"

ARGS_APART = b"""\
spec:
    containers:
        -   name: kube-apiserver
            command: [kube-apiserver]
            args:
                # the one flag
                - "--secure-port=6443"
            volumeMounts:
                - {mountPath: /pki, name: pki}
    volumes:
        - {name: pki, hostPath: {path: /pki}}   # at the end
"""
WITHOUT_VOLUMES = b"""\
spec:
  containers:
  - name: sidecar
    image: other
  - name: kube-apiserver
    command:
    - kube-apiserver
"""
FLOW = b"""{spec: {containers: [{name: kube-apiserver, command: [kube-apiserver, --a=b]}]}}"""


def add(text: bytes) -> bytes:
    return apiserver_manifest.add(text, SETTING, NAME)


def remove(text: bytes) -> bytes:
    return apiserver_manifest.remove(text, SETTING, NAME)


def container(text: bytes) -> dict[str, list[dict[str, str]]]:
    pod = yaml.safe_load(text)
    found = next(each for each in pod["spec"]["containers"] if each["name"] == "kube-apiserver")
    return {**found, "volumes": pod["spec"]["volumes"]}


@pytest.mark.parametrize("text", [TEXT, ARGS_APART, WITHOUT_VOLUMES, FLOW])
def test_flags_mounts_and_volumes_are_added(text: bytes) -> None:
    """In every YAML layout. The program stays the first word."""
    found = container(add(text))
    words = [*found["command"], *found.get("args", [])]
    assert words[0] == "kube-apiserver"
    assert set(SETTING.arguments) <= set(words)  # type: ignore[arg-type]
    for volume in kubeadm.extra_volumes(PLAN):
        mount = {"mountPath": volume["mountPath"], "name": volume["name"], "readOnly": True}
        assert mount in found["volumeMounts"]
        host_path = {"path": volume["hostPath"], "type": volume["pathType"]}
        assert {"name": volume["name"], "hostPath": host_path} in found["volumes"]


@pytest.mark.parametrize("text", [TEXT, ARGS_APART])
def test_only_lines_are_added_and_removal_restores_the_bytes(text: bytes) -> None:
    added = add(text).splitlines()
    left = iter(added)
    assert all(line in left for line in text.splitlines()), "every old line is there, in order"
    assert remove(add(text)) == text


@pytest.mark.parametrize("text", [TEXT, ARGS_APART, WITHOUT_VOLUMES, FLOW])
def test_add_is_idempotent_and_remove_restores_the_document(text: bytes) -> None:
    assert add(add(text)) == add(text)
    assert yaml.safe_load(remove(add(text))) == yaml.safe_load(text)
    assert remove(text) == text


def test_the_setting_written_by_kubeadm_is_removed() -> None:
    """Volumes are recognised by their path, because kubeadm has another order and spelling."""
    pod = yaml.safe_load(TEXT)
    main = pod["spec"]["containers"][0]
    main["command"] += SETTING.arguments
    for volume in kubeadm.extra_volumes(PLAN):
        main["volumeMounts"].append({"mountPath": volume["mountPath"], "name": volume["name"]})
        pod["spec"]["volumes"].append({"name": volume["name"], "hostPath": {"path": volume["hostPath"]}})
    written = yaml.safe_dump(pod).encode()
    assert len(apiserver_manifest.find_setting(written, SETTING, NAME)) == 4
    assert yaml.safe_load(remove(written)) == yaml.safe_load(TEXT)


def test_another_egress_configuration_is_rejected() -> None:
    text = TEXT.replace(b"- --secure-port", b"- --egress-selector-config-file=/mine\n    - --secure-port")
    with pytest.raises(OperatorError, match="conflicting flag --egress-selector-config-file=/mine"):
        add(text)


def test_an_existing_flag_is_not_removed() -> None:
    text = TEXT.replace(b"- --secure-port", b"- --enable-aggregator-routing=true\n    - --secure-port")
    ours = SETTING.without(apiserver_manifest.command_line(text, NAME))
    assert ours.arguments == SETTING.arguments[:1]
    assert add(text).count(b"--enable-aggregator-routing=true") == 1
    assert apiserver_manifest.remove(add(text), ours, NAME) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: [", "invalid YAML"),
        (b"[]", "not a Pod manifest"),
        (b"spec: {containers: []}", "container kube-apiserver not found"),
    ],
)
def test_an_invalid_manifest_is_rejected(text: bytes, message: str) -> None:
    with pytest.raises(OperatorError, match=f"{NAME}: .*{message}"):
        add(text)


@settings(deadline=None)
@given(
    flags=st.lists(st.from_regex(r"--[a-z]{1,8}=[a-z0-9/.:]{0,12}", fullmatch=True), max_size=5),
    indent=st.integers(0, 6),
    volumes=st.integers(1, 3),
    comments=st.booleans(),
)
def test_generated_layouts_are_restored(flags: list[str], indent: int, volumes: int, comments: bool) -> None:
    """With any indentation of lists, with and without comments."""
    pad = " " * indent
    note = ["# a comment"] if comments else []
    lines = ["spec:", "  containers:", "  - name: kube-apiserver", "    command:"]
    lines += [f"    {pad}- {word}" for word in ["kube-apiserver", *flags]] + note
    lines += ["    volumeMounts:"]
    lines += [
        line for n in range(volumes) for line in (f"    {pad}- name: v{n}", f"    {pad}  mountPath: /v{n}")
    ]
    lines += [*note, "  volumes:"]
    for n in range(volumes):
        lines += [f"  {pad}- hostPath:", f"  {pad}    path: /v{n}", f"  {pad}  name: v{n}"]
    text = "\n".join([*lines, *note, ""]).encode()
    assert remove(add(text)) == text
