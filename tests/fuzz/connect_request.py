"""Any bytes give a CONNECT request, a refusal or a wish for more, however they are cut, within bounds."""

from __future__ import annotations

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from bootbridge.wire.connect_request import ConnectParser, ConnectRequest, Refusal


LIMIT = 256


def read(pieces: list[bytes]) -> tuple[ConnectRequest | Refusal | None, bytes]:
    parser = ConnectParser(LIMIT)
    for index, piece in enumerate(pieces):
        result = parser.receive(piece)
        assert len(parser._buffer) < LIMIT
        if isinstance(result, ConnectRequest):
            return result, parser.leftover + b"".join(pieces[index + 1 :])
        if result is not None:
            return result, b""
    return None, b""


def check(data: bytes) -> None:
    size, stream = 1 + data[0] % 64 if data else 1, data[1:]
    result, tunnel = read([stream])
    assert (result, tunnel) == read([stream[at : at + size] for at in range(0, len(stream), size)])
    if isinstance(result, ConnectRequest):
        assert stream.endswith(tunnel)
        assert result.target.rpartition(":")[2].isdigit()
        assert "\n" not in result.target + result.user_agent
    elif isinstance(result, Refusal):
        assert result.reply.startswith(f"HTTP/1.1 {result.status} ".encode())
    else:
        assert len(stream) < LIMIT


SEEDS = [
    b"\x01CONNECT 10.0.0.1:443 HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: curl/8\r\n\r\n\x16\x03\x01",
    b"\x05CONNECT [2001:db8::5%25eth0]:8443 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x00CONNECT name:1 HTTP/1.0\n\n",
    b"\x00GET / HTTP/1.1\r\n\r\n",
    b"\x00\x16\x03\x01\x02\x00",
    b"\x00PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]

if __name__ == "__main__":
    fuzz(check, SEEDS)
