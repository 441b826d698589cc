"""The evidence settings of the join service: in its pod, a TPM device is behind the helper's socket."""

from __future__ import annotations

from typing import Any

import pytest

from bootbridge.node.init.join_service_setup import _in_pod

SOCKET = "unix:/run/bootbridge-tpm/tpm.sock"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"tpm": {"device": "/dev/tpmrm0", "pcrs": [1]}}, {"tpm": {"device": SOCKET, "pcrs": [1]}}),
        ({"tpm": {}}, {"tpm": {"device": SOCKET}}),
        ({"tpm": {"device": "unix:/run/swtpm.sock"}}, {"tpm": {"device": SOCKET}}),
        ({"tpm": {"device": "tcp:127.0.0.1:2321"}}, {"tpm": {"device": "tcp:127.0.0.1:2321"}}),
        ({"x509": {"certificate": "/a", "key": "/b"}}, {"x509": {"certificate": "/a", "key": "/b"}}),
        ("none", "none"),
    ],
)
def test_a_device_becomes_the_socket_of_the_helper(given: Any, wanted: Any) -> None:
    assert _in_pod(given) == wanted
