"""The kernel does what the simulated network assumes of it."""

from __future__ import annotations

import select
import socket


def test_bytes_for_a_closed_peer_leave_what_it_has_sent_readable() -> None:
    """The reset that answers them discards neither the peer's data nor its orderly end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    with ours:
        peer.sendall(b"the answer")
        peer.close()
        assert ours.send(b"too late") == 8
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        while not poll.poll()[0][1] & select.POLLHUP:  # the reset has arrived
            pass
        assert [ours.recv(100), ours.recv(100)] == [b"the answer", b""]
