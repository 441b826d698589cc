"""Messages as dataclasses, compared with the protobuf library; and invalid input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.errors import LocalError
from bootbridge.wire.proto import Message, MessageError, at

FIELD = descriptor_pb2.FieldDescriptorProto


@dataclass(frozen=True, slots=True)
class File(Message):
    name: str = at(1, "")
    data: bytes = at(2, b"", secret=True)


@dataclass(frozen=True, slots=True)
class Sample(Message):
    text: str = at(1, "")
    data: bytes = at(2, b"")
    flag: bool = at(3, False)
    number: int = at(4, 0)
    file: File | None = at(5, None)
    files: tuple[File, ...] = at(6, ())
    names: tuple[str, ...] = at(7, ())
    chunks: tuple[bytes, ...] = at(300, ())


def _oracle() -> Any:
    schema = descriptor_pb2.FileDescriptorProto(name="sample.proto", syntax="proto3")
    one, many = FIELD.LABEL_OPTIONAL, FIELD.LABEL_REPEATED
    layout: dict[str, list[tuple[int, str, int, int]]] = {
        "File": [(1, "name", FIELD.TYPE_STRING, one), (2, "data", FIELD.TYPE_BYTES, one)],
        "Sample": [
            (1, "text", FIELD.TYPE_STRING, one),
            (2, "data", FIELD.TYPE_BYTES, one),
            (3, "flag", FIELD.TYPE_BOOL, one),
            (4, "number", FIELD.TYPE_INT64, one),
            (5, "file", FIELD.TYPE_MESSAGE, one),
            (6, "files", FIELD.TYPE_MESSAGE, many),
            (7, "names", FIELD.TYPE_STRING, many),
            (300, "chunks", FIELD.TYPE_BYTES, many),
        ],
    }
    for message_name, fields in layout.items():
        message = schema.message_type.add(name=message_name)
        for number, name, kind, label in fields:
            type_name = ".File" if kind == FIELD.TYPE_MESSAGE else None
            message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Sample"))


ORACLE = _oracle()
files = st.builds(File, st.text(max_size=20), st.binary(max_size=20))
samples = st.builds(
    Sample,
    st.text(max_size=20),
    st.binary(max_size=200),
    st.booleans(),
    st.integers(0, 2**63 - 1),
    st.none() | files,
    st.lists(files, max_size=3).map(tuple),
    st.lists(st.text(max_size=5), max_size=3).map(tuple),
    st.lists(st.binary(max_size=5), max_size=3).map(tuple),
)


def as_protobuf(sample: Sample) -> Any:
    other = ORACLE(text=sample.text, data=sample.data, flag=sample.flag, number=sample.number)
    if sample.file is not None:
        other.file.SetInParent()
        other.file.name, other.file.data = sample.file.name, sample.file.data
    for file in sample.files:
        other.files.add(name=file.name, data=file.data)
    other.names.extend(sample.names)
    other.chunks.extend(sample.chunks)
    return other


@settings(deadline=None)
@given(samples)
def test_protobuf_writes_the_very_same_bytes(sample: Sample) -> None:
    """Proto3 leaves defaults out, and so do we."""
    assert sample.encode() == as_protobuf(sample).SerializeToString(deterministic=True)


@settings(deadline=None)
@given(samples)
def test_what_protobuf_wrote_is_read(sample: Sample) -> None:
    assert Sample.decode(as_protobuf(sample).SerializeToString()) == sample


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_message_error(body: bytes) -> None:
    """And what was read is written as a message of the same meaning."""
    try:
        sample = Sample.decode(body)
    except MessageError:
        return
    assert Sample.decode(sample.encode()) == sample


def test_fields_of_a_newer_version_are_skipped() -> None:
    assert File.decode(Sample(text="name", number=7, names=("x",)).encode()) == File("name")


def test_a_field_of_another_wire_type_is_an_unknown_one() -> None:
    assert Sample.decode(bytes([1 << 3 | 0, 5])) == Sample()


def test_of_a_field_that_comes_twice_the_last_value_counts() -> None:
    assert File.decode(File("first").encode() + File("second").encode()) == File("second")


def test_an_empty_nested_message_differs_from_a_missing_one() -> None:
    assert Sample.decode(Sample(file=File()).encode()).file == File()
    assert Sample.decode(Sample(file=None).encode()).file is None


def test_empty_elements_of_a_list_are_kept() -> None:
    sample = Sample(files=(File(), File()), names=("", ""))
    assert Sample.decode(sample.encode()) == sample


def test_a_list_of_very_many_elements_is_read_in_one_pass() -> None:
    """In linear time: copying a growing list would let a peer use much CPU."""
    assert Sample.decode(bytes([7 << 3 | 2, 1, 0x78]) * 2**16).names == ("x",) * 2**16


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (bytes([1 << 3 | 2, 2, 0xC3, 0x28]), "Sample.text: invalid UTF-8"),
        (bytes([4 << 3 | 0, *[0xFF] * 9, 1]), "Sample.number: negative"),
        (bytes([2 << 3 | 2, 9, 1]), "Sample: "),
        (bytes([5 << 3 | 2, 3, 1 << 3 | 2, 1, 0xFF]), "File.name: invalid UTF-8"),
    ],
)
def test_an_error_names_the_message_and_the_field(body: bytes, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        Sample.decode(body)


def test_a_secret_is_neither_in_the_repr_nor_in_that_of_what_holds_it() -> None:
    shown = repr(Sample(text="seen", files=(File("name", b"hidden"),)))
    assert "seen" in shown
    assert "hidden" not in shown


@pytest.mark.parametrize("number", [-1, 2**63])
def test_a_number_that_would_be_read_as_another_is_not_written(number: int) -> None:
    with pytest.raises(LocalError):
        Sample(number=number).encode()


def test_a_list_of_numbers_is_refused_when_the_message_is_first_used() -> None:
    with pytest.raises(TypeError, match="packed"):
        Numbers((1, 2)).encode()


@dataclass(frozen=True, slots=True)
class Numbers(Message):
    numbers: tuple[int, ...] = at(1, ())
