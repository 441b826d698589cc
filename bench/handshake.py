"""Measures what one mutual TLS handshake of an agent costs the server in OpenSSL alone: the floor of a storm.

    python bench/handshake.py [--handshakes 2000]

Both sides are in this process, with the contexts of the agent port and of the agent, without sockets. Only
the server's calls count, in processor time.
"""

import argparse
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from pairs import make_certificates

from bootbridge.runtime.tls_files import TlsFiles
from bootbridge.trust.authority import KeyKind

WARM_UP = 50


class Handshake:
    """Two ends of one connection, and the processor time of the server's."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        began = time.thread_time()
        self._server = server.wrap_bio(to_server, to_client, server_side=True)
        self.seconds = time.thread_time() - began
        self._client = client.wrap_bio(to_client, to_server, server_hostname="localhost")

    def run(self) -> None:
        done = False
        while not done:
            _step(self._client.do_handshake)
            began = time.thread_time()
            done = _step(self._server.do_handshake)
            self.seconds += time.thread_time() - began


def _step(handshake: Callable[[], None]) -> bool:
    try:
        handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def microseconds(key: KeyKind, handshakes: int, directory: Path) -> float:
    paths = make_certificates(directory, key).path
    listener = TlsFiles.agent_listener(paths("server.crt"), paths("server.key"), paths("ca.crt"))
    agent = TlsFiles.agent_client(paths("ca.crt"), paths("agent.crt"), paths("agent.key"))
    seconds = 0.0
    for number in range(WARM_UP + handshakes):
        handshake = Handshake(listener.context(), agent.context())
        handshake.run()
        if number >= WARM_UP:
            seconds += handshake.seconds
    return seconds / handshakes * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--handshakes", type=int, default=2_000, metavar="N", help="of each kind of key")
    options = parser.parse_args()
    print(ssl.OPENSSL_VERSION)
    for key in get_args(KeyKind):
        with tempfile.TemporaryDirectory() as directory:
            cost = microseconds(key, options.handshakes, Path(directory))
        print(f"{key}: {cost:.0f} µs per handshake")


if __name__ == "__main__":
    main()
