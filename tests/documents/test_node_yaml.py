"""Invalid node.yaml files, with the exact error of each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bootbridge.common import documents
from bootbridge.errors import OperatorError
from bootbridge.node.configuration import configuration_from

MINIMAL: dict[str, Any] = {
    "metadata": {"static": {"file": "/etc/bootbridge/instance.yaml"}},
    "evidence": {"tpm": {"device": "unix:/run/swtpm/tpm.sock"}},
}
MAPPING = "(must be a mapping)"
STRING = "(must be a string)"
NUMBER = "(must be a number)"


def error_of(text: str) -> str:
    with pytest.raises(OperatorError) as raised:
        configuration_from(documents.parse(text, "node.yaml"), "node.yaml")
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", f"node.yaml: empty document {MAPPING}"),
        ("# only a comment", f"node.yaml: empty document {MAPPING}"),
        ("just text", f"node.yaml: invalid type: string {MAPPING}"),
        ("- metadata", f"node.yaml: invalid type: list {MAPPING}"),
        (
            "metadata: {static",
            "node.yaml: line 1, column 18: invalid YAML: expected ',' or '}', but got '<stream end>'",
        ),
        (
            "metadata:\n  static:\n    file: /x\n   dns: y",
            "node.yaml: line 4, column 4: "
            "invalid YAML: expected <block end>, but found '<block mapping start>'",
        ),
        (
            "metadata:\n\tstatic: {}",
            "node.yaml: line 2, column 1: invalid YAML: found character '\\t' that cannot start any token",
        ),
        ("root: /\nkubeadm: a\nroot: /x", "node.yaml: line 3, column 1: duplicate key 'root'"),
        ('{"root": "/", "root": "/x"}', "node.yaml: line 1, column 15: duplicate key 'root'"),
        (
            "lingerSeconds: 2026-11-17",
            "node.yaml: line 1, column 16: unsupported type timestamp (put text between quotes)",
        ),
        (
            "{}",
            "node.yaml: metadata: required field missing\nnode.yaml: evidence: required field missing",
        ),
        (
            "metadat: {}\nevidence: {tmp: {}}\ninit: {port: x}",
            "node.yaml: metadata: required field missing\n"
            'node.yaml: evidence.tmp: unknown field (did you mean "tpm"?)\n'
            "node.yaml: init.port: invalid type: string (must be an integer)\n"
            'node.yaml: metadat: unknown field (did you mean "metadata"?)',
        ),
    ],
)
def test_every_error_is_reported_with_its_position(text: str, error: str) -> None:
    assert error_of(text) == error


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"metadata": None}, "metadata: required field missing"),
        ({"metadata": {}}, "metadata: exactly one source is required (one of: static, http, dns)"),
        (
            {"metadata": {"static": {"file": "/x"}, "http": {"url": "http://h"}}},
            "metadata: exactly one source is required (one of: static, http, dns)",
        ),
        ({"metadata": {"cloud": {}}}, "metadata.cloud: unknown field (one of: static, http, dns)"),
        ({"metadata": {"static": {}}}, "metadata.static.file: required field missing"),
        (
            {"metadata": {"static": {"file": "x"}}},
            "metadata.static.file: invalid path 'x' (must be absolute)",
        ),
        ({"metadata": {"http": {}}}, "metadata.http.url: required field missing"),
        ({"metadata": {"http": {"url": ""}}}, "metadata.http.url: required field missing"),
        (
            {"metadata": {"http": {"url": "http://h", "seconds": -1}}},
            "metadata.http.seconds: invalid value -1 (must be greater than 0)",
        ),
        ({"metadata": {"dns": {"file": "/x"}}}, "metadata.dns.controlPlanes: required field missing"),
        ({"evidence": None}, "evidence: required field missing"),
        ({"evidence": {}}, "evidence: 0 kinds chosen, exactly one is required (one of: tpm, x509, token)"),
        (
            {"evidence": {"tpm": {}, "token": {"file": "/x"}}},
            "evidence: 2 kinds chosen, exactly one is required (one of: tpm, x509, token)",
        ),
        ({"evidence": {"quantum": {}}}, "evidence.quantum: unknown field (one of: tpm, x509, token)"),
        ({"evidence": {"tpm": {"device": None}}}, f"evidence.tpm.device: invalid type: null {STRING}"),
        (
            {"register": "pcr"},
            "register: invalid value 'pcr' (tpm, or a path on tmpfs such as /run/bootbridge-node/register)",
        ),
        ({"joinService": {"port": 70000}}, "joinService.port: invalid value 70000 (must be at most 65535)"),
        ({"joinService": {"ports": 1}}, 'joinService.ports: unknown field (did you mean "port"?)'),
        (
            {"joinService": {"evidence": "all"}},
            "joinService.evidence: invalid value 'all' (one of: none)",
        ),
        (
            {"joinService": {"evidence": []}},
            "joinService.evidence: invalid type: list (one of: none, or a mapping)",
        ),
        (
            {"joinService": {"evidence": {"x509": {}}}},
            "joinService.evidence.x509.cas: required field missing",
        ),
        ({"init": []}, f"init: invalid type: list {MAPPING}"),
        ({"init": {"port": True}}, "init.port: invalid type: boolean (must be an integer)"),
        ({"init": {"port": -1}}, "init.port: invalid value -1 (must be at least 0)"),
        ({"kubelet": "upstart"}, "kubelet: invalid value 'upstart' (one of: systemd, none)"),
        ({"kubelet": {"start": "sv up"}}, "kubelet.start: invalid type: string (must be a list)"),
        ({"kubelet": {"start": ["sv", 1]}}, f"kubelet.start[1]: invalid type: number {STRING}"),
        ({"kubeadm": 5}, f"kubeadm: invalid type: number {STRING}"),
        ({"run": "here"}, "run: invalid path 'here' (must be absolute)"),
        ({"run": 1}, f"run: invalid type: number {STRING}"),
        ({"lingerSeconds": "long"}, f"lingerSeconds: invalid type: string {NUMBER}"),
        ({"lingerSeconds": 0}, "lingerSeconds: invalid value 0 (must be greater than 0)"),
        ({"tunnelQuietSeconds": True}, f"tunnelQuietSeconds: invalid type: boolean {NUMBER}"),
        ({"metdata": {}}, 'metdata: unknown field (did you mean "metadata"?)'),
    ],
)
def test_an_invalid_field_is_reported_with_its_path(changes: dict[str, Any], error: str) -> None:
    assert error_of(json.dumps({**MINIMAL, **changes})) == f"node.yaml: {error}"
