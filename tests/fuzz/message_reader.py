"""Any bytes give messages or a GrpcError, however they are cut; messages plus rest are the bytes again."""

from __future__ import annotations

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from bootbridge.wire import grpc_messages as grpc
    from bootbridge.wire.packets import Buffer


def read(pieces: list[bytes]) -> tuple[list[bytes], str | None, bytes]:
    messages: list[bytes] = []

    def sink(buffer: Buffer, start: int, end: int) -> None:
        messages.append(bytes(buffer[start:end]))

    reader = grpc.MessageReader(sink)
    for piece in pieces:
        try:
            reader.receive(piece, 0, len(piece))
        except grpc.GrpcError as error:
            return messages, str(error), b""
    assert reader.mid_message == bool(reader._held.size)
    return messages, None, bytes(reader._held.view())


def check(data: bytes) -> None:
    size, stream = 1 + data[0] % 64 if data else 1, data[1:]
    messages, error, rest = read([stream])
    assert (messages, error, rest) == read([stream[at : at + size] for at in range(0, len(stream), size)])
    again = b"".join(grpc.message_prefix(len(message)) + message for message in messages) + rest
    assert stream == again if error is None else stream.startswith(again)


SEEDS = [
    b"\x03" + b"".join(grpc.message_prefix(len(message)) + message for message in messages)
    for messages in ([b""], [b"a", b"bc"], [bytes(300), b"", bytes(70)])
]

if __name__ == "__main__":
    fuzz(check, [*SEEDS, b"\x00\x01\0\0\0\1x", b"\x00\0\xff\xff\xff\xff"])
