"""Adds the tunnel to a kubeadm ClusterConfiguration.

Two flags: the egress selector, and routing of service webhooks to pod addresses, which agents can reach,
instead of cluster IPs. Two volumes: the directories of the egress selector and of the socket.
"""

from __future__ import annotations

import re
from copy import deepcopy
from itertools import pairwise
from typing import Any

import yaml

from bootbridge.bootstrap.plan.plan import TunnelPlan
from bootbridge.bootstrap.render.egress_selector import FLAG
from bootbridge.common.yaml_text import to_yaml
from bootbridge.errors import OperatorError

KIND = "ClusterConfiguration"
V1BETA3, V1BETA4 = "kubeadm.k8s.io/v1beta3", "kubeadm.k8s.io/v1beta4"
ROUTING_FLAG = "enable-aggregator-routing"
_SEPARATOR = re.compile(rb"^---(?:[ \t].*)?\n?", re.MULTILINE)

Document = dict[str, Any]


def extra_args(plan: TunnelPlan) -> dict[str, str]:
    """Returns the kube-apiserver's flags, without dashes."""
    return {FLAG: plan.paths.egress_config_seen_by_apiserver, ROUTING_FLAG: "true"}


def extra_volumes(plan: TunnelPlan) -> list[Document]:
    """Returns the node's directories for the kube-apiserver, read-only."""
    paths = plan.paths
    return [
        _volume("bootbridge-egress", paths.egress_config, paths.egress_config_seen_by_apiserver),
        _volume("bootbridge-socket", paths.socket, paths.socket_seen_by_apiserver),
    ]


def _volume(name: str, file: str, seen_as: str) -> Document:
    return {
        "name": name,
        "hostPath": file.rpartition("/")[0],
        "mountPath": seen_as.rpartition("/")[0],
        "readOnly": True,
        "pathType": "DirectoryOrCreate",
    }


def patch(plan: TunnelPlan, api_version: str = V1BETA4) -> Document:
    """Returns a ClusterConfiguration that contains only the tunnel."""
    return _patched({"apiVersion": api_version, "kind": KIND}, plan, KIND)


def merge(text: bytes, plan: TunnelPlan, name: str = "the kubeadm configuration") -> bytes:
    """Returns a user's configuration with the tunnel. Idempotent.

    Only the ClusterConfiguration is serialised again, without its comments. All other documents stay
    unchanged. If there is none, it is appended.
    """
    parts, found = _split(text), 0
    for index, part in enumerate(parts):
        document = _load(part, name)
        if isinstance(document, dict) and document.get("kind") == KIND:
            found += 1
            merged = _patched(document, plan, name)
            if merged != document:
                parts[index] = _marker(part) + to_yaml(merged)
    if found > 1:
        raise OperatorError(f"{found} documents of kind {KIND}", subject=name, hint="keep one")
    if not found:
        parts = [_closed(part) for part in parts] + [b"---\n" + to_yaml(patch(plan))]
    return b"".join(parts)


def _split(text: bytes) -> list[bytes]:
    """Returns the documents, each with its leading separator."""
    starts = [found.start() for found in _SEPARATOR.finditer(text)]
    cuts = sorted({0, *starts, len(text)})
    return [text[start:end] for start, end in pairwise(cuts)]


def _marker(part: bytes) -> bytes:
    found = _SEPARATOR.match(part)
    return b"---\n" if found else b""


def _closed(part: bytes) -> bytes:
    return part if part.endswith(b"\n") else part + b"\n"


def _load(part: bytes, name: str) -> Any:
    try:
        return yaml.safe_load(part)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        what = getattr(error, "problem", None) or "cannot be parsed"
        raise OperatorError(f"invalid YAML: {what}", subject=name) from error


def _patched(document: Document, plan: TunnelPlan, name: str) -> Document:
    if document.get("apiVersion") not in (V1BETA3, V1BETA4):
        hint = f"supported: {V1BETA3}, {V1BETA4}; use 'kubeadm config migrate'"
        version = document.get("apiVersion")
        raise OperatorError(f"apiVersion: unsupported version {version!r}", subject=name, hint=hint)
    merged = deepcopy(document)
    server = merged.get("apiServer") or {}
    if not isinstance(server, dict):
        raise OperatorError("apiServer: mapping required", subject=name)
    merged["apiServer"] = server
    if document["apiVersion"] == V1BETA3:
        _add_to_map(server, plan, name)
    else:
        _add_to_list(server, plan, name)
    _add_volumes(server, plan, name)
    return merged


def _add_to_map(server: Document, plan: TunnelPlan, name: str) -> None:
    """Adds flags in v1beta3, where extraArgs is a map."""
    given = server.get("extraArgs") or {}
    if not isinstance(given, dict):
        raise OperatorError("apiServer.extraArgs: mapping required in v1beta3", subject=name)
    for flag, value in extra_args(plan).items():
        _reject_conflict(flag, [given[flag]] if flag in given else [], value, name)
        given[flag] = value
    server["extraArgs"] = given


def _add_to_list(server: Document, plan: TunnelPlan, name: str) -> None:
    """Adds flags in v1beta4, where extraArgs is a list of names and values."""
    given = server.get("extraArgs") or []
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        hint = "write each as {name: ..., value: ...}"
        raise OperatorError("apiServer.extraArgs: list required in v1beta4", subject=name, hint=hint)
    for flag, value in extra_args(plan).items():
        set_already = [entry.get("value") for entry in given if entry.get("name") == flag]
        _reject_conflict(flag, set_already, value, name)
        if not set_already:
            given.append({"name": flag, "value": value})
    server["extraArgs"] = given


def _reject_conflict(flag: str, given: list[Any], wanted: str, name: str) -> None:
    others = [value for value in given if value != wanted]
    if others:
        text = f"apiServer.extraArgs: conflicting flag {flag}={others[0]!r}"
        raise OperatorError(text, subject=name, hint=f"remove it: the tunnel requires {wanted!r}")


def _add_volumes(server: Document, plan: TunnelPlan, name: str) -> None:
    given = server.get("extraVolumes") or []
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise OperatorError("apiServer.extraVolumes: list of volumes required", subject=name)
    for volume in extra_volumes(plan):
        same = [index for index, entry in enumerate(given) if entry.get("name") == volume["name"]]
        taken = [
            entry.get("name")
            for entry in given
            if entry.get("mountPath") == volume["mountPath"] and entry.get("name") != volume["name"]
        ]
        if taken:
            text = f"apiServer.extraVolumes: conflicting mount {taken[0]!r} at {volume['mountPath']}"
            raise OperatorError(text, subject=name, hint="remove it: the tunnel mounts a volume there")
        if same:
            given[same[0]] = volume
        else:
            given.append(volume)
    server["extraVolumes"] = given
