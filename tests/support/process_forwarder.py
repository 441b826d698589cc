"""TCP forwarders in front of the programs: a load balancer, and a port for tools without certificates."""

from __future__ import annotations

import random
import select
import socket
import ssl
from collections.abc import Callable

from tests.support.process_endpoints import Endpoint


class Forwarder:
    """Forwards every connection on its TCP port to the socket that `connect` returns."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._endpoint = Endpoint(self._serve)
        self.port = self._endpoint.port

    def _serve(self, sock: socket.socket) -> None:
        with self._connect() as other:
            _forward(sock, other)

    def close(self) -> None:
        self._endpoint.close()


class Balancer(Forwarder):
    """Sends every connection to a backend chosen at random."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = list(ports)
        super().__init__(lambda: socket.create_connection(("127.0.0.1", random.choice(self.ports))))


def _forward(one: socket.socket, two: socket.socket) -> None:
    """Both directions in one thread (a TLS socket allows no second one); the first end ends both."""
    try:
        while True:
            ready = [each for each in (one, two) if isinstance(each, ssl.SSLSocket) and each.pending()]
            for source in ready or select.select([one, two], [], [])[0]:
                data = source.recv(65536)
                if not data:
                    return
                (two if source is one else one).sendall(data)
    except OSError:
        pass  # one side has closed; its last bytes are still forwarded
    finally:
        _drain(two, one)


def _drain(source: socket.socket, sink: socket.socket) -> None:
    """Forwards what is left of `source`, then shuts down: closing with unread bytes would send a reset."""
    try:
        source.settimeout(1)
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    try:
        sink.shutdown(socket.SHUT_WR)
        sink.settimeout(1)
        while sink.recv(65536):
            pass
    except OSError:
        pass
