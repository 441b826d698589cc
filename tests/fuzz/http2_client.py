"""Any bytes at a client connection give events or a protocol error, however they are cut; little is held."""

from __future__ import annotations

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from bootbridge.wire import frames as f
    from tests.fuzz.http2_checks import check_connection, conversations
    from tests.support.wire_speech import client_hears


def check(data: bytes) -> None:
    check_connection(client_hears, data)
    check_connection(client_hears, data[:1] + f.settings({}) + data[1:])


if __name__ == "__main__":
    fuzz(check, conversations(client=False))
