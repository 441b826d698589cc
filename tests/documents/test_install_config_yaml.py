"""Invalid install-config.yaml files, with the exact error of each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bootbridge.bootstrap.plan.install_config import parse
from bootbridge.bootstrap.plan.plan import Platform
from bootbridge.errors import OperatorError
from tests.documents.invalid_text import INVALID_TEXT

MINIMAL: dict[str, Any] = {"apiVersion": "v1", "platform": {"none": {}}}
PLATFORMS = ", ".join(Platform)


def error_of(text: str) -> str:
    with pytest.raises(OperatorError) as raised:
        parse(text)
    return str(raised.value)


@pytest.mark.parametrize(("text", "error"), INVALID_TEXT)
def test_text_that_is_not_a_mapping_is_reported(text: str, error: str) -> None:
    assert error_of(text) == f"install-config.yaml: {error}"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"apiVersion": "v2"}, "apiVersion: invalid value 'v2' (one of: v1)"),
        ({"apiVersion": None}, "apiVersion: required field missing"),
        ({"platform": None}, "platform: required field missing"),
        ({"platform": {}}, f"platform: 0 platforms given, exactly one is required (one of: {PLATFORMS})"),
        (
            {"platform": {"aws": {}, "gcp": {}}},
            f"platform: 2 platforms given, exactly one is required (one of: {PLATFORMS})",
        ),
        ({"platform": {"moon": {}}}, f"platform.moon: invalid value 'moon' (one of: {PLATFORMS})"),
        ({"platform": "aws"}, "platform: invalid type: string (must be a mapping)"),
        (
            {"networking": {"machineNetwork": [{"cidr": "10.0.0.0/33"}]}},
            "networking.machineNetwork[0].cidr: invalid CIDR '10.0.0.0/33'",
        ),
        (
            {"networking": {"serviceNetwork": ["10.0.0.0/16", 7]}},
            "networking.serviceNetwork[1]: invalid type: number (must be a string)",
        ),
        (
            {"networking": {"clusterNetwork": [{"cidr": "10.0.0.0/16", "hostPrefix": 8}]}},
            "networking.clusterNetwork[0].hostPrefix: invalid prefix length 8 (from 16 to 32)",
        ),
    ],
)
def test_an_invalid_field_is_reported_with_its_path(changes: dict[str, Any], error: str) -> None:
    assert error_of(json.dumps({**MINIMAL, **changes})) == f"install-config.yaml: {error}"


def test_unused_fields_are_ignored() -> None:
    ignored = {"pullSecret": 7, "fips": "maybe", "networking": {"networkType": 7}}
    assert parse(json.dumps({**MINIMAL, **ignored})) == parse(json.dumps(MINIMAL))
