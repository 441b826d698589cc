"""Any bytes give a message or a MessageError, and what was read is written and read again the same."""

from __future__ import annotations

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from bootbridge.join_api.messages import ControlPlaneFile, Ticket
    from bootbridge.wire.proto import MessageError


def check(data: bytes) -> None:
    try:
        ticket = Ticket.decode(data)
    except MessageError:
        return
    assert Ticket.decode(ticket.encode()) == ticket


SEEDS = [
    Ticket(
        "node1", True, "v1.36.3", "[fd00::1]:6443", "abc.def", 1 << 40, ("sha256:aa", "sha256:bb")
    ).encode(),
    Ticket("node1", control_plane_files=(ControlPlaneFile("ca.key", b"key"),)).encode(),
]

if __name__ == "__main__":
    fuzz(check, [*SEEDS, b"".join(SEEDS), b"\x7b\x08\x01\x7c" + SEEDS[0]])
