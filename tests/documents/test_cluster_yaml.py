"""Invalid cluster.yaml files, with the exact error of each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bootbridge.common import documents
from bootbridge.errors import OperatorError
from bootbridge.join_api.cluster_spec import ClusterSpec
from tests.documents.invalid_text import INVALID_TEXT

ABSOLUTE = "must be absolute"
HASH_LINE = (
    'add "hash: sha256:<64 hexadecimal digits>", as printed by "sha256sum FILE" for a copy that you trust'
)


def error_of(text: str) -> str:
    with pytest.raises(OperatorError) as raised:
        documents.load(ClusterSpec, text, "cluster.yaml")
    return str(raised.value)


@pytest.mark.parametrize(("text", "error"), INVALID_TEXT)
def test_text_that_is_not_a_mapping_is_reported(text: str, error: str) -> None:
    assert error_of(text) == f"cluster.yaml: {error}"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"podSubnet": []}, 'podSubnet: unknown field (did you mean "podSubnets"?)'),
        ({"kubernetesVersion": "1.19"}, "kubernetesVersion: invalid release '1.19' (for example v1.36.3)"),
        ({"kubernetesVersion": "v1.36"}, "kubernetesVersion: invalid release 'v1.36' (for example v1.36.3)"),
        (
            {"kubernetesVersion": "v1.36.3\n"},
            "kubernetesVersion: invalid release 'v1.36.3\\n' (for example v1.36.3)",
        ),
        ({"kubernetesVersion": 1.36}, "kubernetesVersion: invalid type: number (must be a string)"),
        ({"podSubnets": "10.0.0.0/8"}, "podSubnets: invalid type: string (must be a list)"),
        ({"podSubnets": None}, "podSubnets: invalid type: null (must be a list)"),
        (
            {"podSubnets": ["10.0.0.1/8"]},
            "podSubnets[0]: invalid CIDR '10.0.0.1/8' (10.0.0.1/8 has host bits set)",
        ),
        ({"withoutAddons": ["dns"]}, "withoutAddons[0]: invalid value 'dns' (one of: coredns, kube-proxy)"),
        ({"tunnel": "yes"}, "tunnel: invalid type: string (must be true or false)"),
        (
            {"tunnel": True},
            "tunnelImage: required field missing "
            "(name the image that holds proxy-server and proxy-agent, or leave out tunnel)",
        ),
        ({"kubelet": []}, "kubelet: invalid type: list (must be a mapping)"),
        ({"components": {}}, "components: invalid type: mapping (must be a list)"),
        ({"components": ["kubelet"]}, "components[0]: invalid type: string (must be a mapping)"),
        ({"components": [{}]}, f"components[0]: invalid installPath '': {ABSOLUTE}"),
        (
            {"components": [{"installPath": 7}]},
            "components[0].installPath: invalid type: number (must be a string)",
        ),
        (
            {"components": [{"installPath": "usr/x"}]},
            f"components[0]: invalid installPath 'usr/x': {ABSOLUTE}",
        ),
        (
            {"components": [{"installPath": "/usr/../etc/shadow"}]},
            f"components[0]: invalid installPath '/usr/../etc/shadow': {ABSOLUTE}",
        ),
        (
            {"components": [{"installPath": "/x", "hash": "md5:0"}]},
            "components[0]: invalid hash 'md5:0': must be sha256:<64 hexadecimal digits>",
        ),
        (
            {"components": [{"installPath": "/x", "url": None}]},
            "components[0].url: invalid type: null (must be a string)",
        ),
        (
            {"components": [{"installPath": "/x", "url": "HTTP://example/x"}]},
            f"components[0]: hash required for an http URL ({HASH_LINE})",
        ),
        (
            {"components": [{"installPath": "/x", "url": "https://example/x"}]},
            f"components[0]: hash required for an https URL ({HASH_LINE})",
        ),
        (
            {"components": [{"installPath": "/x", "url": " https://example/x", "hash": f"sha256:{0:064}"}]},
            "components[0]: invalid URL: blank or control character "
            "(remove it, or write a blank in a path as %20)",
        ),
        (
            {"components": [{"installPath": "/x", "url": "ftp://example/x"}]},
            "components[0]: unsupported scheme 'ftp' (use https:, http:, file: or data:)",
        ),
        (
            {"components": [{"installPath": "/x", "extract": "yes"}]},
            "components[0].extract: invalid type: string (must be true or false)",
        ),
        (
            {"components": [{"installPath": "/x", "install_path": "/y"}]},
            'components[0].install_path: unknown field (did you mean "installPath"?)',
        ),
    ],
)
def test_an_invalid_field_is_reported_with_its_path(changes: dict[str, Any], error: str) -> None:
    assert error_of(json.dumps({"kubernetesVersion": "v1.36.3", **changes})) == f"cluster.yaml: {error}"


def test_the_release_is_required() -> None:
    assert error_of("{}") == "cluster.yaml: kubernetesVersion: required field missing"
