"""Checks that apply to the files of every render: of a bootstrap node, and of permanent servers."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bootbridge.bootstrap.diagnose.check.result import CheckResult, at, judged, mapping, passed, warned
from bootbridge.bootstrap.plan.plan import TunnelPlan
from bootbridge.bootstrap.render import egress_selector
from bootbridge.common.files import Tree
from bootbridge.errors import OperatorError

RENDER_AGAIN = "render or inject it again"
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{16}")
_BASE64 = re.compile(rb"LS0tLS1CRUdJTi[A-Za-z0-9+/=]+")


@dataclass(frozen=True)
class RenderedFiles:
    """Files by their absolute paths on the node, and the plan that they were made from."""

    plan: TunnelPlan
    tree: Tree = field(repr=False)

    @property
    def wanted(self) -> Tree:
        """Returns what this version renders from the plan."""
        raise NotImplementedError

    def data(self, path: str) -> bytes:
        if path not in self.tree:
            raise OperatorError("file not found", subject=path, hint=RENDER_AGAIN)
        return self.tree[path].data

    def yaml(self, path: str) -> dict[Any, Any]:
        return mapping(self.data(path), path)


def complete(subject: RenderedFiles) -> CheckResult:
    wanted = subject.wanted
    missing = sorted(set(wanted) - set(subject.tree))
    return judged([f"{path} is missing" for path in missing], f"{len(wanted)} files", RENDER_AGAIN)


def as_rendered(subject: RenderedFiles) -> CheckResult:
    """Changes by hand are allowed, but reported."""
    wanted = subject.wanted
    changed = [path for path, asset in wanted.items() if subject.data(path) != asset.data]
    if changed:
        return warned(
            f"changed by hand, or by another version: {', '.join(changed)}", "check whether this is intended"
        )
    return passed("all files are identical to what this version renders")


def modes(subject: RenderedFiles) -> CheckResult:
    faults = [
        f"{path} has mode {subject.tree[path].mode:04o}, not {asset.mode:04o}"
        for path, asset in subject.wanted.items()
        if path in subject.tree and subject.tree[path].mode & ~asset.mode
    ]
    return judged(faults, "no file mode is wider than planned", "chmod them, or render again")


def no_private_key(subject: RenderedFiles) -> CheckResult:
    """Certificates are issued on the node: a key in these files would be exposed to all their readers."""
    found = [
        path for path, asset in subject.tree.items() if any(map(PRIVATE_KEY.search, _decodings(asset.data)))
    ]
    return judged(
        [f"{path} contains a private key" for path in found],
        "no file contains a private key",
        "remove it, and replace the key: it has been exposed",
    )


def _decodings(data: bytes) -> Iterator[bytes]:
    """Yields the data itself, and every base64-encoded PEM block in it."""
    yield data
    for match in _BASE64.findall(data):
        try:
            yield base64.b64decode(match[: len(match) // 4 * 4])
        except binascii.Error:
            continue


def egress(subject: RenderedFiles) -> CheckResult:
    plan = subject.plan
    document = subject.yaml(plan.paths.egress_config)
    return judged(
        egress_faults(document, plan), f"cluster traffic goes to the socket by {plan.protocol}", RENDER_AGAIN
    )


def egress_faults(document: dict[Any, Any], plan: TunnelPlan) -> list[str]:
    """Returns what the kube-apiserver would reject, and what would bypass the server."""
    faults = egress_selector.validate(document)
    if faults:
        return faults
    selections = {str(each.get("name")).lower(): each for each in at(document, "egressSelections") or ()}
    connection = at(selections, "cluster", "connection")
    socket = at(connection, "transport", "uds", "udsName")
    if socket != plan.paths.socket_seen_by_apiserver:
        return [f"cluster traffic goes to {socket}, not to {plan.paths.socket_seen_by_apiserver}"]
    protocol = at(connection, "proxyProtocol")
    if protocol != plan.protocol:
        return [f"the kube-apiserver would use {protocol}, the server {plan.protocol}"]
    return []


def server_pod_faults(pod: dict[Any, Any], plan: TunnelPlan) -> list[str]:
    """Returns what would keep kube-apiserver or agents from reaching the server."""
    container = at(pod, "spec", "containers", 0)
    arguments = [*(at(container, "command") or ()), *(at(container, "args") or ())]
    wanted = [
        f"--uds-name={plan.paths.socket}",
        f"--agent-port={plan.ports.agent}",
        f"--mode={plan.protocol.server_mode}",
        "--server-port=0",
    ]
    return [
        *(f"{word} is missing" for word in wanted if word not in arguments),
        *([] if at(pod, "spec", "hostNetwork") is True else ["hostNetwork is not set"]),
        *([] if at(container, "readinessProbe") else ["readinessProbe is missing"]),
    ]


def identity_faults(document: dict[Any, Any], kind: str, name: str, namespace: str | None) -> Iterator[str]:
    metadata = at(document, "metadata")
    for what, found, wanted in (
        ("kind", document.get("kind"), kind),
        ("name", at(metadata, "name"), name),
        ("namespace", at(metadata, "namespace"), namespace),
    ):
        if found != wanted:
            yield f"{what} is {found}, not {wanted}"
