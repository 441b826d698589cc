"""What an init passes to the join service: device paths of its evidence, and the binding of its own name."""

from __future__ import annotations

from typing import Any

import pytest

from bootbridge.common.documents import convert
from bootbridge.node.own_identity import own_attestation
from bootbridge.trust.evidence import AttestedPeer
from bootbridge.trust.evidence.configuration import IssuerSettings, chosen_kinds
from bootbridge.trust.evidence.token import TokenIssuer, TokenVerifier

SECRET = b"0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("evidence", "paths"),
    [
        ({"tpm": {}}, ("/dev/tpmrm0",)),
        ({"tpm": None}, ("/dev/tpmrm0",)),
        ({"tpm": {"device": "unix:/run/swtpm/tpm.sock"}}, ("/run/swtpm/tpm.sock",)),
        ({"tpm": {"device": "tcp:127.0.0.1:2321"}}, ()),
        ({"x509": {"certificate": "/e.crt", "key": "/e.key"}}, ("/e.crt", "/e.key")),
        ({"token": {"file": "/token"}}, ("/token",)),
    ],
)
def test_device_and_file_paths_of_the_evidence_are_mounted_into_the_join_service(
    evidence: Any, paths: tuple[str, ...]
) -> None:
    assert convert(IssuerSettings, chosen_kinds(evidence), "evidence").paths == paths


async def test_the_first_node_name_is_bound_to_the_holder_that_the_join_service_will_find() -> None:
    verifier = TokenVerifier({"dev": SECRET}).begin(bytes(32))
    found = verifier.verify_evidence(await TokenIssuer("dev", SECRET).issue(bytes(32)))
    shown = await own_attestation(TokenIssuer("dev", SECRET))
    assert isinstance(found, AttestedPeer)
    assert shown.identity == found.identity == "token:dev"
