"""An ignition document is read as Ignition reads it, and edited without disturbing the rest."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.bootstrap.ignition import json_spans
from bootbridge.bootstrap.ignition.document import Ignition, Splice, spliced
from bootbridge.common import data_url
from bootbridge.common.files import Asset
from bootbridge.errors import OperatorError
from tests.support import ignition_documents as documents
from tests.support.ignition_documents import BOOTKUBE, FORMATTINGS, compact, document

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def parse(value: Any) -> Ignition:
    return Ignition.parse(compact(value), "b.ign")


def refusal(value: Any) -> str:
    with pytest.raises(OperatorError) as refused:
        parse(value)
    return str(refused.value)


@given(json_values, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_every_value_is_found_where_it_stands(value: Any, indent: Any, ascii_only: bool) -> None:
    """The text between start and end is exactly that value, at every level."""
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
def test_files_and_units_are_read_whatever_the_formatting(name: str) -> None:
    """Order, spacing and escapes mean nothing."""
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
def test_data_urls_of_all_kinds_are_read(url: str, content: bytes) -> None:
    """Base64 or percent-encoded, with any parameters or none."""
    assert data_url.decode(url) == content


@pytest.mark.parametrize(
    "url", ["", "https://example/x", "data:", "data:;base64,a", "data:;base64,a?==", "data:,é"]
)
def test_what_is_no_data_url_is_refused(url: str) -> None:
    """With ValueError, which names what is wrong."""
    with pytest.raises(ValueError):
        data_url.decode(url)


@given(st.binary())
def test_data_urls_give_back_what_was_put_in(content: bytes) -> None:
    """Whatever the bytes."""
    assert data_url.decode(data_url.encode(content)) == content


def test_compressed_contents_are_unpacked_and_packed_again() -> None:
    """A replacement keeps the entry's compression."""
    value = document()
    entry = value["storage"]["files"][1]
    entry["contents"] = {"compression": "gzip", "source": documents.data_url(gzip.compress(b"old"))}
    ignition = parse(value)
    assert ignition.content(BOOTKUBE) == b"old"
    text = spliced(ignition.text, [ignition.replacement(BOOTKUBE, b"new")])
    assert Ignition.parse(text.encode(), "b.ign").content(BOOTKUBE) == b"new"


def test_contents_that_unpack_without_end_are_refused() -> None:
    """A few kilobytes must not become gigabytes in memory."""
    bomb = gzip.compress(bytes(80 << 20), compresslevel=9)
    value = document()
    value["storage"]["files"][1]["contents"] = {"compression": "gzip", "source": documents.data_url(bomb)}
    with pytest.raises(OperatorError, match="unpacks to more"):
        parse(value).content(BOOTKUBE)


def test_broken_contents_are_refused_by_path() -> None:
    """The error names the file inside the file."""
    value = document()
    value["storage"]["files"][1]["contents"] = {"source": "data:;base64,%%%"}
    with pytest.raises(OperatorError, match=BOOTKUBE):
        parse(value).content(BOOTKUBE)


def test_a_replacement_changes_that_string_alone() -> None:
    """All other bytes stay."""
    for formatting in FORMATTINGS.values():
        ignition = Ignition.parse(formatting(document()), "b.ign")
        splice = ignition.replacement(BOOTKUBE, b"new")
        text = spliced(ignition.text, [splice])
        assert text.startswith(ignition.text[: splice.start])
        assert text.endswith(ignition.text[splice.start + splice.length :])
        assert Ignition.parse(text.encode(), "b.ign").content(BOOTKUBE) == b"new"


def test_added_files_come_last_with_mode_and_owner() -> None:
    """And read back as they were given."""
    for formatting in FORMATTINGS.values():
        ignition = Ignition.parse(formatting(document()), "b.ign")
        text = spliced(
            ignition.text, [ignition.addition({"/a": Asset(b"1", 0o600), "/b": Asset(b"\x00\xff")})]
        )
        entries = json.loads(text)["storage"]["files"]
        assert [(entry["path"], entry["mode"], entry["user"]) for entry in entries[-2:]] == [
            ("/a", 0o600, {"name": "root"}),
            ("/b", 0o644, {"name": "root"}),
        ]
        assert Ignition.parse(text.encode(), "b.ign").content("/b") == b"\x00\xff"


def test_added_files_stand_on_lines_of_their_own_where_the_others_do() -> None:
    """So that a person can still read the file."""
    ignition = Ignition.parse(json.dumps(document(), indent=2).encode(), "b.ign")
    text = spliced(ignition.text, [ignition.addition({"/a": Asset(b"1")})])
    assert '\n      {"overwrite":true,"path":"/a"' in text


@pytest.mark.parametrize("kind", ["files", "directories", "links"])
def test_a_path_that_is_taken_is_refused(kind: str) -> None:
    """Ignition accepts one entry per path, whatever its kind."""
    value = document()
    value["storage"].setdefault(kind, []).append({"path": "/opt//taken", "target": "/x"})
    with pytest.raises(OperatorError, match="/opt/taken"):
        parse(value).addition({"/opt/taken": Asset(b"")})


def test_a_pinned_file_is_not_changed() -> None:
    """Its hash would no longer fit, and the node would not boot."""
    value = document()
    value["storage"]["files"][1]["contents"]["verification"] = {"hash": "sha512-00"}
    with pytest.raises(OperatorError, match="pinned"):
        parse(value).replacement(BOOTKUBE, b"new")


@given(st.text(), st.data())
def test_splices_are_undone_by_their_reverse(text: str, data: st.DataObject) -> None:
    """Whatever is put where."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=2)))
    new = data.draw(st.text())
    there = Splice(cuts[0], cuts[1] - cuts[0], new)
    back = Splice(cuts[0], len(new), text[cuts[0] : cuts[1]])
    assert spliced(spliced(text, [there]), [back]) == text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "holds no object"),
        ({}, "ignition.version: is missing"),
        ({"ignition": {}}, "ignition.version: is missing"),
        ({"ignition": None}, "ignition.version: is missing"),
        ({"ignition": {"version": "2.2.0"}}, "'2.2.0' is not supported"),
        ({"ignition": {"version": 3}}, "ignition.version: is no text"),
        ({"ignition": {"version": "3.2.0"}, "storage": []}, "storage: is no object"),
        ({"ignition": {"version": "3.2.0"}, "storage": {"files": {}}}, "files: is no list"),
        ({"ignition": {"version": "3.2.0"}, "storage": {"files": [1]}}, r"files[0]: is no object"),
        ({"ignition": {"version": "3.2.0"}, "storage": {"files": [{}]}}, "files[0]: has no absolute path"),
        ({"ignition": {"version": "3.2.0"}, "storage": {"files": [{"path": "a"}]}}, "has no absolute path"),
        (
            {"ignition": {"version": "3.2.0"}, "storage": {"files": [{"path": "/a"}, {"path": "//a"}]}},
            "/a: is there twice",
        ),
        (
            {"ignition": {"version": "3.2.0"}, "storage": {"files": [{"path": "/a", "mode": "0644"}]}},
            "mode: is no number",
        ),
        (
            {"ignition": {"version": "3.2.0"}, "storage": {"files": [{"path": "/a", "mode": 99999}]}},
            "99999 is no mode",
        ),
        (
            {"ignition": {"version": "3.2.0"}, "systemd": {"units": [{"name": "a"}, {"name": "a"}]}},
            "a: is there twice",
        ),
        ({"ignition": {"version": "3.2.0"}, "Storage": {}}, "is written 'Storage'"),
    ],
)
def test_what_ignition_would_not_take_is_refused_by_field(value: Any, reason: str) -> None:
    """File first, then the field, then what is wrong with it."""
    text = refusal(value)
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
def test_what_is_no_clean_json_is_refused(data: bytes) -> None:
    """Also a key given twice: an edit could land in the one that does not count."""
    with pytest.raises(OperatorError, match=r"^b\.ign: "):
        Ignition.parse(data, "b.ign")


def test_nulls_are_as_good_as_nothing() -> None:
    """As in Go, which reads them for Ignition."""
    ignition = parse(
        {"ignition": {"version": "3.4.0", "config": None}, "storage": {"files": None}, "systemd": None}
    )
    assert (ignition.files, ignition.units) == ({}, {})


def test_contents_stay_out_of_repr() -> None:
    """They may be keys."""
    ignition = parse(document(files={"/k": b"SECRET"}))
    shown = repr(ignition) + repr(ignition.files["/k"]) + repr(ignition.addition({"/s": Asset(b"SECRET")}))
    assert "SECRET" not in shown
    assert documents.data_url(b"SECRET") not in shown
