"""The loader of operators' documents: text to JSON's types, and all errors at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.common import documents
from bootbridge.common.documents import CONFIG, Cidr, Secret
from bootbridge.errors import OperatorError


@dataclass(frozen=True)
class Inner:
    port: int = 0
    password: Secret = ""


@dataclass(frozen=True)
class Document:
    __pydantic_config__ = CONFIG

    name: str
    inner: Inner = Inner()
    pod_cidrs: tuple[Cidr, ...] = ()
    level: dict[str, int] | int = 0


def error_of(text: str | bytes) -> str:
    with pytest.raises(OperatorError) as raised:
        documents.load(Document, text, "a.yaml")
    return str(raised.value)


# --- text


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a: [1, 2.5, true, null, x]", {"a": [1, 2.5, True, None, "x"]}),
        ("{15: a, on: b}", {"15": "a", "on": "b"}),
        ("base: &b {x: 1}\nmore: {<<: *b, y: 2}", {"base": {"x": 1}, "more": {"x": 1, "y": 2}}),
        ("base: &b {x: 1}\nmore: {<<: *b, x: 2}", {"base": {"x": 1}, "more": {"x": 2}}),
        ("", None),
    ],
)
def test_yaml_is_parsed_into_the_types_of_json(text: str, parsed: Any) -> None:
    assert documents.parse(text, "a.yaml") == parsed


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: 1\nb: 2\na: 3", "line 3, column 1: duplicate key 'a'"),
        ('{15: a, "15": b}', "line 1, column 9: duplicate key '15'"),
        ("x:\n- {a: 1, a: 2}", "line 2, column 10: duplicate key 'a'"),
        ("? [a]\n: 1", "line 1, column 3: invalid key: must be text"),
        ("a: .inf", "line 1, column 4: invalid number: must be finite"),
        ("a: 2026-11-17", "line 1, column 4: unsupported type timestamp (put text between quotes)"),
        ("a: !!binary aGk=", "line 1, column 4: unsupported type binary (put text between quotes)"),
        ("a: &x [*x]", "line 1, column 4: an alias inside its own anchor"),
        ("a: *x", "line 1, column 4: invalid YAML: found undefined alias"),
        ("a: !secret x", "line 1, column 4: invalid YAML: could not determine a constructor for the tag"),
        ("a: b\n c: d", "line 2, column 3: invalid YAML: mapping values are not allowed here"),
        ("a: 1\n--- \nb: 2", "line 2, column 1: invalid YAML: but found another document"),
        (b"\xff\xfe\xfa", "invalid YAML: truncated data"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_broken_yaml_is_reported_with_line_and_column(text: str | bytes, error: str) -> None:
    assert error_of(text) == f"a.yaml: {error}"


def test_aliases_that_expand_to_gigabytes_are_rejected() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert error_of("\n".join(lines)) == "a.yaml: line 1, column 1: too many aliases"


def test_a_document_that_is_too_large_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "DOCUMENT_BYTES_MAX", 10)
    assert error_of("name: 1234567890") == "a.yaml: larger than 10 bytes"


# --- fields


def test_all_errors_are_reported_at_once_with_their_paths() -> None:
    with pytest.raises(OperatorError) as raised:
        documents.load(Document, "nam: x\ninner: {port: true}\npodCidrs: [10.0.0.0/8, all]", "a.yaml")
    assert raised.value.lines == [
        "a.yaml: name: required field missing",
        "a.yaml: inner.port: invalid type: boolean (must be an integer)",
        "a.yaml: podCidrs[1]: invalid CIDR 'all' ('all' does not appear to be an IPv4 or IPv6 network)",
        'a.yaml: nam: unknown field (did you mean "name"?)',
    ]


def test_the_number_of_reported_errors_is_bounded() -> None:
    lines = error_of(f"name: x\npodCidrs: {[f'x{n}' for n in range(100)]}").splitlines()
    assert len(lines) == documents.ERRORS_SHOWN_MAX + 1
    assert lines[-1] == "a.yaml: 80 more errors"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("name: x\nlevel: high", "level: invalid type: string (must be a mapping, or an integer)"),
        ("name: x\nlevel: {a: high}", "level.a: invalid type: string (must be an integer)"),
        ("name: x\ninner: 7", "inner: invalid type: number (must be a mapping)"),
        ("name: null", "name: invalid type: null (must be a string)"),
        (f"name: x\npodCidrs: [{'y' * 200}]", f"podCidrs[0]: invalid CIDR '{'y' * 79}… ("),
        ('{"name": "x", "a\\nb": 1}', "'a\\nb': unknown field (one of: name, inner, podCidrs, level)"),
        ('{"name": "\\ud800"}', "invalid text (unexpected end of hex escape"),
    ],
)
def test_one_error_of_a_field(text: str, error: str) -> None:
    assert error_of(text).startswith(f"a.yaml: {error}")


@pytest.mark.parametrize(
    "text",
    [
        "name: x\ninner: {password: 1234567890}",
        "name: x\ninner: {passwort: hush}",
        "name: x\ninner: hush",
        "name: x\ninner: {password: *hushhush}",
        "name: x\ninner: {password: !hushhush a}",
        "name: x\ninner: {password: 'hush",
        'name: x\ninner: {password: "hush\\q"}',
    ],
)
def test_no_error_shows_a_secret(text: str) -> None:
    error = error_of(text)
    assert "hush" not in error
    assert "1234567890" not in error


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def loaded(document: object) -> None:
    """Text is loaded, anything else converted; an error must be an OperatorError that names the file."""
    lines = ["a.yaml: "]
    try:
        if isinstance(document, str | bytes):
            documents.load(Document, document, "a.yaml")
        else:
            documents.convert(Document, document, "a.yaml")
    except OperatorError as error:
        lines = error.lines
    assert all(line.startswith("a.yaml: ") for line in lines)


@settings(deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_gives_a_document_or_an_operator_error(text: str | bytes) -> None:
    loaded(text)


@settings(deadline=None)
@given(JSON_VALUES | st.dictionaries(st.sampled_from(["name", "inner", "podCidrs", "level"]), JSON_VALUES))
def test_any_json_gives_a_document_or_an_operator_error(document: object) -> None:
    loaded(document)
