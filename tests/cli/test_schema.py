"""`bootbridge schema`: every document has a schema in which every field is described."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bootbridge.cli import main
from bootbridge.cli.schema import SCHEMAS


def printed(capsys: pytest.CaptureFixture[str], name: str) -> dict[str, Any]:
    assert main.main(["schema", name]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def undescribed(schema: dict[str, Any]) -> Iterator[str]:
    for place in (schema, *schema.get("$defs", {}).values()):
        for name, field in place.get("properties", {}).items():
            if "description" not in field:
                yield f"{place['title']}.{name}"


def test_without_a_name_the_documents_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["schema"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_field_is_described(capsys: pytest.CaptureFixture[str], name: str) -> None:
    schema = printed(capsys, name)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    # Programs write plan.json; its schema is for readers of the record.
    assert name == "plan" or list(undescribed(schema)) == []


def test_names_are_those_of_the_file_and_unknown_fields_are_rejected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    schema = printed(capsys, "cluster")
    assert {"kubernetesVersion", "apiServerSANs", "tunnelImage"} <= set(schema["properties"])
    assert schema["required"] == ["kubernetesVersion"]
    assert schema["additionalProperties"] is False


def test_secrets_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = printed(capsys, "policy")["$defs"]["TokenVerifierSettings"]["properties"]["tokens"]
    assert tokens["additionalProperties"]["writeOnly"] is True


def test_an_unknown_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["schema", "nodes"]) == 1
    assert "invalid value 'nodes'" in capsys.readouterr().err
