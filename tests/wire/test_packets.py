"""Konnectivity's packets, byte for byte."""

from __future__ import annotations

import pytest

from bootbridge.wire import packets as p

# Computed from the published schema; the Go peers write exactly these bytes.
GOLDEN: dict[str, tuple[p.Packet, str]] = {
    "dial": (
        p.DialRequest("tcp", "127.0.0.1:8080", 111),
        "12170a03746370120e3132372e302e302e313a38303830186f",
    ),
    "dial answered": (p.DialResponse("", 1, 111), "08011a041001186f"),
    "dial refused": (
        p.DialResponse("No agent available", 0, 111),
        "08011a160a124e6f206167656e7420617661696c61626c65186f",
    ),
    "close": (p.CloseRequest(1), "08022a020801"),
    "closed": (p.CloseResponse("", 1), "080332021001"),
    "closed with error": (
        p.CloseResponse("Unknown connectID", 1),
        "080332150a11556e6b6e6f776e20636f6e6e65637449441001",
    ),
    "data": (p.Data(1, b"hello"), "0804220908011a0568656c6c6f"),
    "close dial": (p.CloseDial(111), "08053a02086f"),
    "drain": (p.Drain(), "08064200"),
    "credit": (p.Credit(1, 65536), "08a19c018ae20906080110808004"),
    "end": (p.End(1), "08a29c0192e209020801"),
    "reset": (p.Reset(1), "08a39c019ae209020801"),
    "unknown": (p.Unknown(9), "0809"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_every_packet_is_written_as_the_peers_write_it(name: str) -> None:
    """Encoding gives the golden bytes."""
    packet, expected = GOLDEN[name]
    assert expected == p.encode(packet).hex()


@pytest.mark.parametrize("name", GOLDEN)
def test_every_packet_is_read_back(name: str) -> None:
    """Decoding the golden bytes gives the packet, from any kind of buffer."""
    packet, raw = GOLDEN[name]
    body = bytes.fromhex(raw)
    for buffer in (body, bytearray(body), memoryview(body)):
        assert packet == p.decode(buffer)


@pytest.mark.parametrize(
    ("raw", "packet"),
    [
        ("", p.DialRequest("", "", 0)),
        ("0801", p.DialResponse("", 0, 0)),
        ("0802", p.CloseRequest(0)),
        ("0803", p.CloseResponse("", 0)),
        ("0804", p.Data(0, b"")),
        ("0805", p.CloseDial(0)),
        ("0806", p.Drain()),
        ("08022200", p.CloseRequest(0)),
    ],
)
def test_an_absent_payload_reads_as_zero_values(raw: str, packet: p.Packet) -> None:
    """The type alone decides what a packet is, as with Go's nil-safe getters."""
    assert packet == p.decode(bytes.fromhex(raw))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("08", "truncated varint"),
        ("0880808080808080808002", "longer than 64 bits"),
        ("08808080808080808080800100", "longer than 64 bits"),
        ("220508", "truncated field"),
        ("22ffffffffffffffffff01", "truncated field"),
        ("2203080108", "truncated"),
        ("0001", "field number 0"),
        ("0c", "wire type 4"),
        ("0f", "wire type 7"),
        ("7b0001", "field number 0"),
        ("f8ffffffff01", "field number"),
        ("7b8401", "wire type 4"),
        ("7b", "truncated"),
        ("79000000", "truncated field"),
        ("12040a02c328", "invalid UTF-8"),
    ],
)
def test_a_malformed_body_is_a_packet_error(raw: str, reason: str) -> None:
    """With PacketError, for every kind of fault."""
    with pytest.raises(p.PacketError, match=reason):
        p.decode(bytes.fromhex(raw))


@pytest.mark.parametrize("connect_id", [1, 127, 128, 16383, 16384, 2**31, 2**63 - 1])
@pytest.mark.parametrize("size", [1, 100, 4096, 16384, 32768, 100_000])
def test_the_fast_path_writes_what_the_encoder_writes(connect_id: int, size: int) -> None:
    """data_head + payload is the DATA packet, and peek_data finds the payload in it."""
    payload = bytes(size)
    packet = p.data_head(connect_id, size) + payload
    assert packet == p.encode(p.Data(connect_id, payload))
    framed = b"12345" + packet + b"next"
    assert p.peek_data(framed, 5, len(framed) - 4) == (connect_id, 5 + len(packet) - size)


@pytest.mark.parametrize("size", [4096, 16384, 32768])
def test_a_data_packet_costs_what_the_reference_says(size: int) -> None:
    """11 bytes around 4 KiB, 13 around 16 or 32 KiB, with a connect id of two bytes."""
    assert {4096: 11, 16384: 13, 32768: 13}[size] == len(p.data_head(200, size))


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "0804",
        "08042200",
        "080422020801",
        "0804220408011a00",
        "0804220908011a0568656c6c",
        "0804220908011a0568656c6c6f00",
        "0804220a08011a0568656c6c6f1a",
        "22 0908011a0568656c6c6f 0804",
        "0804220d08ffffffffffffffffff011a0161",
        "0804220e088180808080808080808080001a0161",
    ],
)
def test_peek_leaves_anything_unusual_to_decode(raw: str) -> None:
    """Only the one form that every known peer writes takes the fast path."""
    body = bytes.fromhex(raw)
    assert p.peek_data(body, 0, len(body)) is None


def test_peek_never_reads_beyond_the_message() -> None:
    """The buffer may hold another message after it."""
    body = bytes.fromhex("08042200")
    behind = bytes.fromhex("08011a0161")
    assert p.peek_data(body + behind, 0, len(body)) is None


def test_a_data_packet_never_shows_its_payload() -> None:
    """Payloads may be secret: logs and failing tests print the size only."""
    assert repr(p.Data(7, b"secret")) == "<Packet DATA 7 6B>"


def test_deep_groups_are_refused_without_recursing_for_ever() -> None:
    """Nested unknown groups end in an error, not in the interpreter's stack limit."""
    with pytest.raises(p.PacketError):
        p.decode(b"\x7b" * 100_000)
