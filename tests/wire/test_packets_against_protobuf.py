"""Our packets and the protobuf library encode and decode alike."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from hypothesis import assume, example, given
from hypothesis import strategies as st

from bootbridge.wire import packets as p
from tests.support.wire_protobuf import PACKET, PACKET_OF_BYTES, from_protobuf, to_protobuf

int64 = st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1))
text = st.text(max_size=20)
packets = st.one_of(
    st.builds(p.DialRequest, text, text, int64),
    st.builds(p.DialResponse, text, int64, int64),
    st.builds(p.CloseRequest, int64),
    st.builds(p.CloseResponse, text, int64),
    st.builds(p.Data, int64, st.binary(max_size=300)),
    st.builds(p.CloseDial, int64),
    st.just(p.Drain()),
    st.builds(p.Credit, int64, int64),
    st.builds(p.End, int64),
    st.builds(p.Reset, int64),
)


@given(packets)
def test_we_write_what_the_library_writes(packet: p.Packet) -> None:
    """Byte for byte, for every packet there is."""
    assert to_protobuf(packet).SerializeToString(deterministic=True) == p.encode(packet)


@given(packets)
def test_we_read_what_we_write(packet: p.Packet) -> None:
    """Encoding loses nothing."""
    assert packet == p.decode(p.encode(packet))


# --- unusual but valid messages: any fields, in any order, any number of times

varints = st.one_of(st.integers(0, 10), st.integers(0, 2**64 - 1)).map(
    lambda value: p.varint(value - (1 << 64) if value >= 1 << 63 else value)
)
padded_varints = varints.flatmap(
    lambda raw: st.integers(0, 10 - len(raw)).map(
        lambda more: raw if not more else raw[:-1] + bytes([raw[-1] | 0x80]) + b"\x80" * (more - 1) + b"\0"
    )
)


def tagged(number: int, wire_type: int, body: bytes) -> bytes:
    return p.varint(number << 3 | wire_type) + body


def chunk(body: bytes) -> bytes:
    return p.varint(len(body)) + body


numbers = st.sampled_from([1, 2, 3, 4, 15, 1000])
scalars = st.one_of(
    st.builds(tagged, numbers, st.just(0), st.one_of(varints, padded_varints)),
    st.builds(tagged, numbers, st.just(2), st.one_of(text.map(str.encode), st.binary(max_size=6)).map(chunk)),
    st.builds(tagged, numbers, st.just(1), st.binary(min_size=8, max_size=8)),
    st.builds(tagged, numbers, st.just(5), st.binary(min_size=4, max_size=4)),
)
groups = st.recursive(
    scalars,
    lambda inner: st.builds(
        lambda number, body: tagged(number, 3, b"".join(body)) + tagged(number, 4, b""),
        st.sampled_from([9, 15, 1000]),
        st.lists(inner, max_size=3),
    ),
    max_leaves=6,
)
payloads = st.builds(
    lambda number, fields: tagged(number, 2, chunk(b"".join(fields))),
    st.sampled_from([2, 3, 4, 5, 6, 7, 8, p.CREDIT, p.END, p.RESET]),
    st.lists(groups, max_size=5),
)
types = st.builds(
    lambda kind: tagged(1, 0, p.varint(kind)),
    st.one_of(st.sampled_from([*p.TYPE_NAMES, 7, 2**32 + 4, -1]), st.integers(-(2**31), 2**31)),
)
bodies = st.lists(st.one_of(types, payloads, payloads, groups), max_size=6).map(b"".join)
damaged = st.builds(
    lambda body, at, byte: body[: at % (len(body) + 1)] + byte + body[at % (len(body) + 1) + 1 :],
    bodies,
    st.integers(0, 1000),
    st.binary(max_size=2),
)


def read_by_library(schema: type, body: bytes) -> p.Packet | None:
    message = schema()
    try:
        message.ParseFromString(body)
        return from_protobuf(message)
    except (DecodeError, UnicodeDecodeError):
        return None


def read_by_us(body: bytes) -> p.Packet | None:
    try:
        return p.decode(body)
    except p.PacketError as error:
        # Inside of unknown groups, Go and we refuse the number 0 and this library does not.
        assume("field number 0" not in str(error))
        return None


@given(bodies)
@example(p.encode(p.Data(1, b"a")) + p.encode(p.Data(2, b"")))
@example(p.encode(p.CloseRequest(7)) + tagged(4, 2, chunk(b"")) + tagged(1, 0, b"\x02"))
@example(tagged(1, 2, chunk(b"x")) + p.encode(p.Drain()))
@example(p.encode(p.CloseRequest(7))[:-1] + b"\x07" + tagged(5, 2, chunk(tagged(1, 2, chunk(b"")))))
def test_what_the_library_accepts_we_read_the_same_way(body: bytes) -> None:
    """Unknown fields skipped, repeated payloads merged, the last of a oneof and of a scalar wins."""
    expected = read_by_library(PACKET, body)
    assume(expected is not None)
    assert expected == p.decode(body)


@given(st.one_of(bodies, damaged, st.binary(max_size=40)))
def test_we_accept_what_the_library_accepts_apart_from_text(body: bytes) -> None:
    """Well-formed or not: the same verdict, with a schema that does not ask for UTF-8."""
    expected = read_by_library(PACKET_OF_BYTES, body)
    assume(not _has_long_tag(body))
    assert expected == read_by_us(body)


def _has_long_tag(body: bytes) -> bool:
    """Tags written with six bytes or more: the libraries of the world do not agree on them."""
    return any(all(byte > 0x7F for byte in body[at : at + 5]) for at in range(len(body) - 4))


@given(st.one_of(bodies, damaged, packets.map(p.encode), st.binary(max_size=40)), st.binary(max_size=8))
def test_peek_agrees_with_decode_whenever_it_answers(body: bytes, behind: bytes) -> None:
    """The fast path is a shortcut, never another opinion."""
    found = p.peek_data(behind + body + behind, len(behind), len(behind) + len(body))
    if found is not None:
        connect_id, at = found
        assert p.decode(body) == p.Data(connect_id, body[at - len(behind) :])


@given(st.integers(1, 2**63 - 1), st.binary(min_size=1, max_size=300))
def test_peek_answers_for_every_data_packet_we_write(connect_id: int, payload: bytes) -> None:
    """No DATA packet of ours takes the slow path."""
    head = p.data_head(connect_id, len(payload))
    assert head + payload == p.encode(p.Data(connect_id, payload))
    assert p.peek_data(head + payload, 0, len(head + payload)) == (connect_id, len(head))


@given(st.lists(st.binary(min_size=0, max_size=12), max_size=4), st.integers(1, 10), st.integers(1, 2**40))
def test_peek_agrees_with_decode_on_data_with_padded_varints(
    payload: list[bytes], extra: int, connect_id: int
) -> None:
    """Varints written longer than need be are read alike on both paths."""
    body = b"".join(payload)
    padded = p.varint(connect_id)
    padded = padded[:-1] + bytes([padded[-1] | 0x80]) + b"\x80" * (extra - 1) + b"\0"
    packet = b"\x08\x04" + tagged(4, 2, chunk(b"\x08" + padded + tagged(3, 2, chunk(body))))
    found = p.peek_data(packet, 0, len(packet))
    if found is not None:
        assert p.decode(packet) == p.Data(found[0], packet[found[1] :])
