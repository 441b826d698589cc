"""Reads ignition files as Ignition does, and edits them without changing other bytes."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.bootstrap.ignition import json_spans
from bootbridge.bootstrap.ignition.document import Ignition, Splice, apply_splices
from bootbridge.common import data_url
from bootbridge.common.files import Asset
from bootbridge.errors import OperatorError
from tests.support import ignition_documents as documents
from tests.support.ignition_documents import BOOTKUBE, FORMATTINGS, compact, document

HEAD = {"ignition": {"version": "3.2.0"}}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def parse(value: Any) -> Ignition:
    return Ignition.parse(compact(value), "b.ign")


def rejection(value: Any) -> str:
    with pytest.raises(OperatorError) as raised:
        parse(value)
    return str(raised.value)


@given(json_values, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_the_position_of_every_value(value: Any, indent: Any, ascii_only: bool) -> None:
    """At every level, the text from start to end is that value."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)

    def descend(found: json_spans.JsonSpan) -> None:
        assert json.loads(text[found.start : found.end]) == found.content
        if isinstance(found.content, dict):
            children = list(json_spans.members(text, found))
            assert {child.key: child.content for child in children} == found.content
        elif isinstance(found.content, list):
            children = list(json_spans.elements(text, found))
            assert [child.content for child in children] == found.content
        else:
            children = []
        for child in children:
            descend(child)

    descend(json_spans.root(text, "x"))


@pytest.mark.parametrize("name", FORMATTINGS)
def test_files_and_units_are_read_in_every_formatting(name: str) -> None:
    """Order, spacing and escapes do not matter."""
    ignition = Ignition.parse(FORMATTINGS[name](document()), "b.ign")
    assert ignition.version == "3.2.0"
    assert ignition.content(BOOTKUBE) == documents.script("4.22")
    assert ignition.files[BOOTKUBE].mode == 0o555
    assert ignition.content("/etc/motd") == b""
    assert ignition.content("/etc/empty") == b""
    assert ignition.content("/not/there") is None
    assert set(ignition.units) == {"bootkube.service", "release-image-pivot.service", "zincati.service"}


@pytest.mark.parametrize(
    ("url", "content"),
    [
        ("data:,", b""),
        ("data:,a%20b+c%0A", b"a b+c\n"),
        ("data:text/plain;charset=utf-8;base64,aGk=", b"hi"),
        ("data:text/plain;charset=utf-8;base64,", b""),
        ("data:;base64,aGk%3D", b"hi"),
        ("DATA:application/json;charset=us-ascii,%7B%7D", b"{}"),
        ("data:;base64,aG\nk=", b"hi"),
        ("data:text/plain;x=y,z", b"z"),
    ],
)
def test_data_urls_are_decoded(url: str, content: bytes) -> None:
    """Base64 or percent-encoded, with and without parameters."""
    assert data_url.decode(url) == content


@pytest.mark.parametrize(
    "url", ["", "https://example/x", "data:", "data:;base64,a", "data:;base64,a?==", "data:,é"]
)
def test_an_invalid_data_url_is_rejected(url: str) -> None:
    with pytest.raises(ValueError):
        data_url.decode(url)


@given(st.binary())
def test_data_url_round_trip(content: bytes) -> None:
    assert data_url.decode(data_url.encode(content)) == content


def test_compressed_contents_are_unpacked_and_packed_again() -> None:
    """A replacement keeps the entry's compression."""
    value = document()
    entry = value["storage"]["files"][1]
    entry["contents"] = {"compression": "gzip", "source": documents.data_url(gzip.compress(b"old"))}
    ignition = parse(value)
    assert ignition.content(BOOTKUBE) == b"old"
    text = apply_splices(ignition.text, [ignition.replacement(BOOTKUBE, b"new")])
    assert Ignition.parse(text.encode(), "b.ign").content(BOOTKUBE) == b"new"


def test_a_decompression_bomb_is_rejected() -> None:
    """A few kilobytes must not unpack to gigabytes in memory."""
    bomb = gzip.compress(bytes(80 << 20), compresslevel=9)
    value = document()
    value["storage"]["files"][1]["contents"] = {"compression": "gzip", "source": documents.data_url(bomb)}
    with pytest.raises(OperatorError, match=r"more than \d+ bytes unpacked"):
        parse(value).content(BOOTKUBE)


def test_invalid_contents_are_rejected() -> None:
    """The error names the path of the entry."""
    value = document()
    value["storage"]["files"][1]["contents"] = {"source": "data:;base64,%%%"}
    with pytest.raises(OperatorError, match=BOOTKUBE):
        parse(value).content(BOOTKUBE)


def test_a_replacement_changes_only_one_string() -> None:
    for formatting in FORMATTINGS.values():
        ignition = Ignition.parse(formatting(document()), "b.ign")
        splice = ignition.replacement(BOOTKUBE, b"new")
        text = apply_splices(ignition.text, [splice])
        assert text.startswith(ignition.text[: splice.start])
        assert text.endswith(ignition.text[splice.start + splice.length :])
        assert Ignition.parse(text.encode(), "b.ign").content(BOOTKUBE) == b"new"


def test_added_files_are_last_with_mode_and_owner() -> None:
    for formatting in FORMATTINGS.values():
        ignition = Ignition.parse(formatting(document()), "b.ign")
        text = apply_splices(
            ignition.text, [ignition.addition({"/a": Asset(b"1", 0o600), "/b": Asset(b"\x00\xff")})]
        )
        entries = json.loads(text)["storage"]["files"]
        assert [(entry["path"], entry["mode"], entry["user"]) for entry in entries[-2:]] == [
            ("/a", 0o600, {"name": "root"}),
            ("/b", 0o644, {"name": "root"}),
        ]
        assert Ignition.parse(text.encode(), "b.ign").content("/b") == b"\x00\xff"


def test_added_files_follow_the_formatting() -> None:
    """Each is on its own line if the others are."""
    ignition = Ignition.parse(json.dumps(document(), indent=2).encode(), "b.ign")
    text = apply_splices(ignition.text, [ignition.addition({"/a": Asset(b"1")})])
    assert '\n      {"overwrite":true,"path":"/a"' in text


@pytest.mark.parametrize("kind", ["files", "directories", "links"])
def test_a_duplicate_path_is_rejected(kind: str) -> None:
    """Ignition accepts one entry per path, of any kind."""
    value = document()
    value["storage"].setdefault(kind, []).append({"path": "/opt//taken", "target": "/x"})
    with pytest.raises(OperatorError, match="/opt/taken"):
        parse(value).addition({"/opt/taken": Asset(b"")})


def test_a_file_with_verification_is_not_changed() -> None:
    """Its hash would not match, and the node would not boot."""
    value = document()
    value["storage"]["files"][1]["contents"]["verification"] = {"hash": "sha512-00"}
    with pytest.raises(OperatorError, match="protected by contents"):
        parse(value).replacement(BOOTKUBE, b"new")


@given(st.text(), st.data())
def test_a_reverse_splice_restores_the_text(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=2)))
    new = data.draw(st.text())
    there = Splice(cuts[0], cuts[1] - cuts[0], new)
    back = Splice(cuts[0], len(new), text[cuts[0] : cuts[1]])
    assert apply_splices(apply_splices(text, [there]), [back]) == text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "not an ignition file"),
        ({}, "ignition.version: required field missing"),
        ({"ignition": {}}, "ignition.version: required field missing"),
        ({"ignition": None}, "ignition.version: required field missing"),
        ({"ignition": {"version": "2.2.0"}}, "unsupported version '2.2.0'"),
        ({"ignition": {"version": 3}}, "ignition.version: invalid type: string required"),
        ({**HEAD, "storage": []}, "storage: invalid type: object required"),
        ({**HEAD, "storage": {"files": {}}}, "files: invalid type: list required"),
        ({**HEAD, "storage": {"files": [1]}}, "files[0]: invalid type: object required"),
        ({**HEAD, "storage": {"files": [{}]}}, "files[0].path: absolute path required"),
        ({**HEAD, "storage": {"files": [{"path": "a"}]}}, "absolute path required"),
        ({**HEAD, "storage": {"files": [{"path": "/a"}, {"path": "//a"}]}}, "/a: duplicate path"),
        (
            {**HEAD, "storage": {"files": [{"path": "/a", "mode": "0644"}]}},
            "mode: invalid type: number required",
        ),
        ({**HEAD, "storage": {"files": [{"path": "/a", "mode": 99999}]}}, "invalid file mode 99999"),
        ({**HEAD, "systemd": {"units": [{"name": "a"}, {"name": "a"}]}}, "a: duplicate name"),
        ({**HEAD, "Storage": {}}, "invalid spelling 'Storage'"),
    ],
)
def test_what_ignition_rejects_is_rejected(value: Any, reason: str) -> None:
    """The error has the file, the field and the problem."""
    text = rejection(value)
    assert text.startswith("b.ign: ")
    assert reason in text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b'{"a": NaN}',
        b"[" * 100_000,
        b"9" * 5000,
        b'{"ignition":{"version":"3.2.0"},"storage":{},"storage":{}}',
    ],
)
def test_invalid_json_is_rejected(data: bytes) -> None:
    """Also a duplicate key: an edit could change the one that Ignition ignores."""
    with pytest.raises(OperatorError, match=r"^b\.ign: "):
        Ignition.parse(data, "b.ign")


def test_null_is_treated_as_missing() -> None:
    """As Go's JSON decoder does for Ignition."""
    ignition = parse(
        {"ignition": {"version": "3.4.0", "config": None}, "storage": {"files": None}, "systemd": None}
    )
    assert (ignition.files, ignition.units) == ({}, {})


def test_repr_omits_contents() -> None:
    """They may be keys."""
    ignition = parse(document(files={"/k": b"SECRET"}))
    shown = repr(ignition) + repr(ignition.files["/k"]) + repr(ignition.addition({"/s": Asset(b"SECRET")}))
    assert "SECRET" not in shown
    assert documents.data_url(b"SECRET") not in shown
