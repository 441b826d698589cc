"""Invalid instance.yaml files, with the exact error of each. The metadata source retries."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.metadata.static import StaticMetadata
from tests.documents.invalid_text import INVALID_TEXT

CP0 = {"name": "cp-0", "role": "control-plane", "addresses": ["10.0.0.5"]}


def error_of(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(MetadataUnavailable) as raised:
        asyncio.run(StaticMetadata(path).myself())
    return str(raised.value).replace(str(path), "instance.yaml")


@pytest.mark.parametrize(("text", "error"), INVALID_TEXT)
def test_text_that_is_not_a_mapping_is_reported(tmp_path: Path, text: str, error: str) -> None:
    assert error_of(tmp_path / "instance.yaml", text) == f"instance.yaml: {error}"


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"peers": []}, "self: required field missing"),
        ({"self": None}, "self: required field missing"),
        ({"self": CP0, "peer": []}, 'peer: unknown field (did you mean "peers"?)'),
        ({"self": []}, "self: invalid type: list (must be a mapping)"),
        ({"self": {**CP0, "name": 5}}, "self: name: invalid type: number (must be a string)"),
        (
            {"self": {**CP0, "role": "king"}},
            "self: role: invalid value 'king' (one of: control-plane, worker)",
        ),
        ({"self": {"name": "cp-0"}}, "self: role: required field missing"),
        ({"self": {**CP0, "addresses": ["10.0.0"]}}, "self: addresses[0]: invalid IP address '10.0.0'"),
        ({"self": {**CP0, "addresses": {}}}, "self: addresses: invalid type: mapping (must be a list)"),
    ],
)
def test_an_invalid_field_is_reported_with_its_path(
    tmp_path: Path, document: dict[str, Any], error: str
) -> None:
    found = error_of(tmp_path / "instance.yaml", json.dumps(document))
    assert found == f"instance.yaml: {error}"
