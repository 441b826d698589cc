"""What a kubeadm ClusterConfiguration needs so that its kube-apiserver uses the tunnel.

Two flags and two directories: the egress selector with the socket's directory, and routing of
service webhooks to pod addresses, which agents can reach, instead of cluster addresses.
"""

from __future__ import annotations

import re
from copy import deepcopy
from itertools import pairwise
from typing import Any

import yaml

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.bootstrap.render.egress_selector import FLAG
from bootbridge.common.yaml_text import to_yaml
from bootbridge.errors import OperatorError

KIND = "ClusterConfiguration"
V1BETA3, V1BETA4 = "kubeadm.k8s.io/v1beta3", "kubeadm.k8s.io/v1beta4"
ROUTING_FLAG = "enable-aggregator-routing"
_SEPARATOR = re.compile(rb"^---(?:[ \t].*)?\n?", re.MULTILINE)

Document = dict[str, Any]


def extra_args(plan: Plan) -> dict[str, str]:
    """The kube-apiserver's flags, without dashes."""
    return {FLAG: plan.paths.egress_config_seen_by_apiserver, ROUTING_FLAG: "true"}


def extra_volumes(plan: Plan) -> list[Document]:
    """What the kube-apiserver has to see of the node; it only reads and connects."""
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


def patch(plan: Plan, api_version: str = V1BETA4) -> Document:
    """A ClusterConfiguration with the tunnel alone, to read or to start from."""
    return _patched({"apiVersion": api_version, "kind": KIND}, plan, KIND)


def merge(text: bytes, plan: Plan, name: str = "the kubeadm configuration") -> bytes:
    """A user's configuration with the tunnel in it; a second time nothing changes.

    Only the ClusterConfiguration is written anew (its comments are lost), every other
    document stays as it is, byte for byte. Without one, it is added at the end.
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
        raise OperatorError(f"holds {found} documents of kind {KIND}", subject=name, hint="leave one")
    if not found:
        parts = [_closed(part) for part in parts] + [b"---\n" + to_yaml(patch(plan))]
    return b"".join(parts)


def _split(text: bytes) -> list[bytes]:
    """The documents with the separator that opens each, so that joining them gives the text again."""
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
        what = getattr(error, "problem", None) or "it cannot be read"
        raise OperatorError(f"no YAML: {what}", subject=name) from error


def _patched(document: Document, plan: Plan, name: str) -> Document:
    if document.get("apiVersion") not in (V1BETA3, V1BETA4):
        hint = f"{V1BETA3} and {V1BETA4} are known; 'kubeadm config migrate' rewrites older ones"
        raise OperatorError(f"apiVersion: {document.get('apiVersion')!r} is unknown", subject=name, hint=hint)
    merged = deepcopy(document)
    server = merged.get("apiServer") or {}
    if not isinstance(server, dict):
        raise OperatorError("apiServer is no mapping", subject=name)
    merged["apiServer"] = server
    if document["apiVersion"] == V1BETA3:
        _add_to_map(server, plan, name)
    else:
        _add_to_list(server, plan, name)
    _add_volumes(server, plan, name)
    return merged


def _add_to_map(server: Document, plan: Plan, name: str) -> None:
    """v1beta3: extraArgs is a map."""
    given = server.get("extraArgs") or {}
    if not isinstance(given, dict):
        raise OperatorError("apiServer.extraArgs is no mapping, as v1beta3 has it", subject=name)
    for flag, value in extra_args(plan).items():
        _refuse_other(flag, [given[flag]] if flag in given else [], value, name)
        given[flag] = value
    server["extraArgs"] = given


def _add_to_list(server: Document, plan: Plan, name: str) -> None:
    """v1beta4: extraArgs is a list of names and values."""
    given = server.get("extraArgs") or []
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        hint = "write each as {name: ..., value: ...}"
        raise OperatorError("apiServer.extraArgs is no list, as v1beta4 has it", subject=name, hint=hint)
    for flag, value in extra_args(plan).items():
        set_already = [entry.get("value") for entry in given if entry.get("name") == flag]
        _refuse_other(flag, set_already, value, name)
        if not set_already:
            given.append({"name": flag, "value": value})
    server["extraArgs"] = given


def _refuse_other(flag: str, given: list[Any], wanted: str, name: str) -> None:
    others = [value for value in given if value != wanted]
    if others:
        text = f"apiServer.extraArgs: {flag} is {others[0]!r} already, and the tunnel needs {wanted!r}"
        raise OperatorError(text, subject=name, hint="remove it, or keep this cluster off the tunnel")


def _add_volumes(server: Document, plan: Plan, name: str) -> None:
    given = server.get("extraVolumes") or []
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise OperatorError("apiServer.extraVolumes is no list of volumes", subject=name)
    for volume in extra_volumes(plan):
        same = [index for index, entry in enumerate(given) if entry.get("name") == volume["name"]]
        taken = [
            entry.get("name")
            for entry in given
            if entry.get("mountPath") == volume["mountPath"] and entry.get("name") != volume["name"]
        ]
        if taken:
            text = f"apiServer.extraVolumes: {taken[0]!r} is mounted at {volume['mountPath']} already"
            raise OperatorError(text, subject=name, hint="a pod can mount only one volume there")
        if same:
            given[same[0]] = volume
        else:
            given.append(volume)
    server["extraVolumes"] = given
