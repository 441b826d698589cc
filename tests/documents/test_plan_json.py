"""Invalid plan.json files, with the exact error of each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.errors import OperatorError
from tests.documents.invalid_text import INVALID_TEXT


def error_of(data: bytes) -> str:
    with pytest.raises(OperatorError) as raised:
        record.load(data, "plan.json")
    return str(raised.value)


@pytest.mark.parametrize(("text", "error"), INVALID_TEXT)
def test_text_that_is_not_a_mapping_is_reported(text: str, error: str) -> None:
    assert error_of(text.encode()) == f"plan.json: {error}"


def changed(*path: str, **changes: Any) -> bytes:
    document: dict[str, Any] = json.loads(record.dump(Plan()))
    place = document
    for key in path:
        place = place[key]
    place.update(changes)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (changed(version=1), "version: unknown version 1 (use the bootbridge that wrote it)"),
        (changed("plan", flavour="x"), "plan.flavour: invalid value 'x' (one of: openshift, kubeadm)"),
        (changed("plan", nodeIPs=["x"]), "plan.nodeIPs[0]: invalid IP address 'x'"),
        (changed("plan", networks={}), "plan.networks.machine: required field missing"),
        (
            changed("plan", "networks", machine=["10.0.0.1/8"]),
            "plan.networks.machine[0]: invalid CIDR '10.0.0.1/8'",
        ),
        (changed("plan", hostNetwork="no"), "plan.hostNetwork: invalid type: string (must be true or false)"),
        (
            changed("plan", hostNet=True),
            'plan.hostNet: unknown field (did you mean "hostNetwork"?)',
        ),
    ],
)
def test_an_invalid_field_is_reported_with_its_path(data: bytes, error: str) -> None:
    assert error_of(data) == f"plan.json: {error}"


@pytest.mark.parametrize("key", json.loads(record.dump(Plan()))["plan"])
def test_a_missing_field_is_not_filled_with_its_default(key: str) -> None:
    document = json.loads(record.dump(Plan()))
    del document["plan"][key]
    assert error_of(json.dumps(document).encode()) == f"plan.json: plan.{key}: required field missing"
