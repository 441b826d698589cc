"""Any bytes at a client connection give events or a protocol error, however they are cut; little is held."""

from __future__ import annotations

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from bootbridge.wire import frames as f
    from tests.fuzz.http2_checks import check_connection, conversations
    from tests.support.wire_frame_sequences import receive_as_client


def check(data: bytes) -> None:
    check_connection(receive_as_client, data)
    check_connection(receive_as_client, data[:1] + f.settings({}) + data[1:])


if __name__ == "__main__":
    fuzz(check, conversations(client=False))
