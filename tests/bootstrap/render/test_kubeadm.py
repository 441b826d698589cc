"""Adds the tunnel to kubeadm configurations."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from bootbridge.bootstrap.plan.plan import Flavour, Plan, ProxyImage
from bootbridge.bootstrap.render import kubeadm
from bootbridge.bootstrap.render.kubeadm import V1BETA3, V1BETA4
from bootbridge.errors import OperatorError

PLAN = Plan(flavour=Flavour.KUBEADM, image=ProxyImage("bootbridge", "registry.example/bootbridge:1"))

INIT = b"""\
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration:
    name:   oddly-indented   # with a comment
"""
CLUSTER = b"""\
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
apiServer:
  extraArgs:
    - name: audit-log-maxage
      value: "7"
  extraVolumes:
    - {name: audit, hostPath: /var/log/a, mountPath: /var/log/a}
networking:
  podSubnet: 10.244.0.0/16
"""
OLD = b"""\
apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
apiServer:
  extraArgs:
    audit-log-maxage: "7"
"""


def cluster_configuration(text: bytes) -> dict[str, Any]:
    (found,) = [
        document
        for document in yaml.safe_load_all(text)
        if document and document["kind"] == "ClusterConfiguration"
    ]
    return found


def api_server(text: bytes) -> dict[str, Any]:
    server: dict[str, Any] = cluster_configuration(text)["apiServer"]
    return server


def args_of(server: dict[str, Any]) -> dict[str, str]:
    given = server["extraArgs"]
    return given if isinstance(given, dict) else {entry["name"]: entry["value"] for entry in given}


@pytest.mark.parametrize("version", [V1BETA3, V1BETA4])
def test_the_patch_has_flags_and_volumes(version: str) -> None:
    """In the format of both API versions: a map, or a list of names and values."""
    patch = kubeadm.patch(PLAN, version)
    assert patch["apiVersion"] == version
    assert isinstance(patch["apiServer"]["extraArgs"], dict if version == V1BETA3 else list)
    assert args_of(patch["apiServer"]) == {
        "egress-selector-config-file": "/etc/kubernetes/bootbridge/apiserver/egress-selector.yaml",
        "enable-aggregator-routing": "true",
    }


def test_the_kube_apiserver_mounts_no_keys() -> None:
    """Only the directories of the egress selector and of the socket."""
    mounts = {volume["mountPath"]: volume for volume in kubeadm.patch(PLAN)["apiServer"]["extraVolumes"]}
    for file in (PLAN.paths.egress_config_seen_by_apiserver, PLAN.paths.socket_seen_by_apiserver):
        assert mounts[file.rpartition("/")[0]]["readOnly"] is True
    assert not any(f"{PLAN.paths.tls}/".startswith(f"{mount}/") for mount in mounts)


@pytest.mark.parametrize("text", [CLUSTER, OLD])
def test_the_users_settings_stay(text: bytes) -> None:
    merged = api_server(kubeadm.merge(text, PLAN))
    assert args_of(merged) == {"audit-log-maxage": "7", **kubeadm.extra_args(PLAN)}
    theirs = api_server(text).get("extraVolumes", [])
    assert merged["extraVolumes"] == theirs + kubeadm.extra_volumes(PLAN)
    assert cluster_configuration(kubeadm.merge(CLUSTER, PLAN))["networking"] == {"podSubnet": "10.244.0.0/16"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (INIT + b"---\n" + CLUSTER, [INIT]),
        (b"---\n" + INIT + b"--- # second\n" + CLUSTER, [b"---\n" + INIT]),
        (CLUSTER + b"---\n" + INIT, [b"---\n" + INIT]),
        (INIT + b"---\n" + CLUSTER + b"---\n" + INIT, [INIT, b"---\n" + INIT]),
        (INIT, [INIT]),
        (INIT.rstrip(b"\n"), [INIT]),
        (b"", []),
    ],
)
def test_other_documents_stay_unchanged(text: bytes, kept: list[bytes]) -> None:
    """Byte for byte. A missing ClusterConfiguration is added."""
    merged = kubeadm.merge(text, PLAN)
    assert all(document in merged for document in kept)
    assert args_of(api_server(merged)).items() >= kubeadm.extra_args(PLAN).items()
    count = sum(1 for document in yaml.safe_load_all(merged) if document)
    assert count == len(kept) + 1


@pytest.mark.parametrize("text", [CLUSTER, OLD, INIT, INIT + b"---\n" + CLUSTER, b""])
def test_merging_again_changes_nothing(text: bytes) -> None:
    once = kubeadm.merge(text, PLAN)
    assert kubeadm.merge(once, PLAN) == once


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (CLUSTER.replace(b"v1beta4", b"v1beta2"), "apiVersion"),
        (CLUSTER + b"---\n" + CLUSTER, "2 documents"),
        (CLUSTER.replace(b"audit-log-maxage", b"egress-selector-config-file"), "egress-selector-config-file"),
        (OLD.replace(b"audit-log-maxage", b"enable-aggregator-routing"), "enable-aggregator-routing"),
        (CLUSTER.replace(b"mountPath: /var/log/a", b"mountPath: /run/bootbridge"), "extraVolumes"),
        (OLD.replace(b"v1beta3", b"v1beta4"), "extraArgs"),
        (CLUSTER.replace(b"v1beta4", b"v1beta3"), "extraArgs"),
        (b"kind: ClusterConfiguration\napiVersion: kubeadm.k8s.io/v1beta4\napiServer: [1]\n", "apiServer"),
        (b"a: [", "invalid YAML"),
    ],
)
def test_conflicts_and_invalid_files_are_rejected(text: bytes, named: str) -> None:
    """The error has file and field."""
    with pytest.raises(OperatorError, match=named) as caught:
        kubeadm.merge(text, PLAN, "kubeadm.yaml")
    assert caught.value.subject == "kubeadm.yaml"
