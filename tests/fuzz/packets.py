"""Any bytes give a packet or a PacketError; encoding keeps it; peek_data never disagrees with decode."""

from __future__ import annotations

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from bootbridge.wire import packets as p


def check(data: bytes) -> None:
    try:
        packet = p.decode(data)
    except p.PacketError:
        assert p.peek_data(data, 0, len(data)) is None
        return
    assert p.decode(p.encode(packet)) == packet
    padded = b"\x08\x04\x22" + data + b"\x08\x01\x1a\x01x"
    found = p.peek_data(padded, 3, 3 + len(data))
    if found is not None:
        assert packet == p.Data(found[0], data[found[1] - 3 :])


SEEDS = [
    p.encode(packet)
    for packet in (
        p.DialRequest("tcp", "127.0.0.1:8080", 111),
        p.DialResponse("No agent available", 1, 111),
        p.CloseRequest(1),
        p.CloseResponse("Unknown connectID", 1),
        p.Data(1, b"hello"),
        p.Data(2**40, bytes(200)),
        p.CloseDial(111),
        p.Drain(),
        p.Credit(1, 65536),
        p.End(1),
        p.Unknown(99),
    )
]

if __name__ == "__main__":
    fuzz(check, [*SEEDS, SEEDS[4] + SEEDS[5], b"\x7b\x08\x01\x7c" + SEEDS[0], b"\x79" + bytes(8) + SEEDS[1]])
