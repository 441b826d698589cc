"""A TCP balancer that sends every connection to a backend chosen at random."""

from __future__ import annotations

import random
import socket
import threading

from tests.support.process_endpoints import Endpoint


class Balancer:
    def __init__(self, ports: list[int]) -> None:
        self.ports = list(ports)
        self._endpoint = Endpoint(self._serve)
        self.port = self._endpoint.port

    def _serve(self, sock: socket.socket) -> None:
        backend = socket.create_connection(("127.0.0.1", random.choice(self.ports)))
        threading.Thread(target=_carry, args=(backend, sock), daemon=True).start()
        _carry(sock, backend)
        backend.close()

    def close(self) -> None:
        self._endpoint.close()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    """One direction; its end ends both, as one lost half would otherwise go unnoticed."""
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for sock in (source, sink):
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
