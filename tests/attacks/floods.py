"""Floods against a running program, as a small program of its own, for the attack tests and the benchmark.

python -m tests.attacks.floods KIND HOST:PORT [--ca CA --cert C --key K] [--seconds N] [--connections N]

Prints one JSON line: what was sent, how many connections the server closed and with which HTTP/2 error.
When the server closes a connection, the flood opens another one, until its time has passed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets
from bootbridge.wire.hpack_headers import encode

CONNECT_PATH: Final = "/AgentService/Connect"
# How much is sent before the flood looks for an answer.
BATCH_BYTES: Final = 32 * 1024
WINDOW: Final = 1 << 30
# Longer than the server delays a handshake.
TIMEOUT_SECONDS: Final = 30.0
# 54 KiB of identifiers, each another network.
IDENTIFIERS: Final = "&".join(f"cidr=10.{n >> 8}.{n & 255}.0/24" for n in range(2700))
SETTINGS_ENTRIES: Final = 170_000  # 1 MiB


@dataclass
class Report:
    """What a flood did and how the server reacted."""

    kind: str
    connections: int = 0
    refused: int = 0  # connection attempts that failed
    frames: int = 0
    bytes: int = 0
    closed_by_server: int = 0
    goaways: Counter[str] = field(default_factory=Counter)  # by error code
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def line(self) -> str:
        return json.dumps(vars(self))


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    tls: ssl.SSLContext | None
    source: str = ""  # the address to flood from; empty: the kernel's choice

    def connect(self) -> socket.socket:
        source = (self.source, 0) if self.source else None
        return socket.create_connection((self.host, self.port), TIMEOUT_SECONDS, source)

    def shake_hands(self) -> ssl.SSLSocket:
        assert self.tls is not None, "--ca is required for this kind"
        sock = self.connect()
        try:
            return self.tls.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise


# --- frames of one flood: the first ones, then the same batch again and again


def connect_headers(
    stream_id: int, agent_id: str = "flood", metadata: tuple[tuple[str, str], ...] = ()
) -> bytes:
    headers = grpc.request_headers(CONNECT_PATH, "flood", [("agentid", agent_id), *metadata])
    return f.frame(f.HEADERS, f.END_HEADERS, stream_id, encode(headers))


def _resets(agent_id: str, metadata: tuple[tuple[str, str], ...] = ()) -> Iterator[bytes]:
    for stream_id in count(1, 2):
        yield connect_headers(stream_id, agent_id, metadata) + f.rst_stream(stream_id, f.CANCEL)


def _identifiers(agent_id: str) -> Iterator[bytes]:
    return _resets(agent_id, (("agentidentifiers", IDENTIFIERS),))


def _on_stream_1(each: bytes) -> Callable[[str], Iterator[bytes]]:
    def flood(agent_id: str) -> Iterator[bytes]:
        yield connect_headers(1, agent_id)
        while True:
            yield each

    return flood


def _continuation(agent_id: str) -> Iterator[bytes]:
    yield f.frame(f.HEADERS, 0, 1, b"")
    while True:
        yield f.frame(f.CONTINUATION, 0, 1, b"")


def _data_after_refusal(agent_id: str) -> Iterator[bytes]:
    """The call is answered with an error at once; what follows on its stream is ignored."""
    headers = grpc.request_headers("/AgentService/Other", "flood")
    yield f.frame(f.HEADERS, f.END_HEADERS, 1, encode(headers))
    while True:
        yield f.frame(f.DATA, 0, 1, b"x")


def _late_data(agent_id: str) -> Iterator[bytes]:
    """The server ends the call because of a message that is too large; DATA goes on."""
    yield connect_headers(1, agent_id) + f.frame(f.DATA, 0, 1, grpc.message_prefix(2**32 - 1))
    frame = f.frame(f.DATA, 0, 1, bytes(f.DEFAULT_FRAME_MAX))
    while True:
        yield frame


def _other_methods(agent_id: str) -> Iterator[bytes]:
    for stream_id in count(1, 2):
        headers = grpc.request_headers("/AgentService/Other", "flood")
        yield f.frame(f.HEADERS, f.END_HEADERS, stream_id, encode(headers))


def _small_packets(agent_id: str) -> Iterator[bytes]:
    """Packets of the smallest size, for a connection that does not exist."""
    packet = packets.data_head(1 << 40, 1) + b"x"
    message = grpc.message_prefix(len(packet)) + packet
    frame = f.frame(f.DATA, 0, 1, message * (f.DEFAULT_FRAME_MAX // len(message)))
    yield connect_headers(1, agent_id)
    while True:
        yield frame


# By kind, for an agent id. Each has a budget.
FRAMES: Final[dict[str, Callable[[str], Iterator[bytes]]]] = {
    "rst": _resets,
    "ping": _on_stream_1(f.frame(f.PING, 0, 0, b"flooding")),
    "settings": _on_stream_1(f.settings({f.INITIAL_WINDOW_SIZE: 65535})),
    "settings-large": _on_stream_1(
        f.frame(f.SETTINGS, 0, 0, f.SETTING.pack(f.INITIAL_WINDOW_SIZE, 65535) * SETTINGS_ENTRIES)
    ),
    "window-update": _on_stream_1(f.window_update(0, 1)),
    "priority": _on_stream_1(f.frame(f.PRIORITY, 0, 1, b"\x00\x00\x00\x00\x00")),
    "empty-data": _on_stream_1(f.frame(f.DATA, 0, 1)),
    "goaway": _on_stream_1(f.goaway(0, f.NO_ERROR)),
    "unknown": _on_stream_1(f.frame(0xBE, 0, 0, b"flooding")),
    # A stream that depends on itself: answered with RST_STREAM.
    "invalid": _on_stream_1(f.frame(f.PRIORITY, 0, 3, b"\x00\x00\x00\x03\x00")),
    "small-data": _data_after_refusal,
    "continuation": _continuation,
    "identifiers": _identifiers,
    "late-data": _late_data,
    "other-methods": _other_methods,
}
# They transfer something, so that no budget ends them.
SMALL_DATA: Final[dict[str, Callable[[str], Iterator[bytes]]]] = {
    "small-frames": _on_stream_1(f.frame(f.DATA, 0, 1, b"\x00")),
    "small-packets": _small_packets,
}
KINDS: Final = ("silent", "hellos", "handshakes", *FRAMES, *SMALL_DATA, "health-idle")


# --- floods


def send_frames(target: Target, report: Report, deadline: float) -> None:
    """Sends one kind of frame on one connection after the other, as fast as the server reads."""
    with target.shake_hands() as sock:
        report.connections += 1
        sock.setblocking(False)
        # Answers are read, so that the server cannot end the connection because too many wait.
        start = f.PREFACE + f.settings({f.INITIAL_WINDOW_SIZE: WINDOW}) + f.window_update(0, WINDOW)
        flood = (FRAMES | SMALL_DATA)[report.kind]("flood")
        pending = memoryview(start)
        received = bytearray()
        while time.monotonic() < deadline:
            if not pending:
                pending = memoryview(_batch(flood, report))
            try:
                sent = sock.send(pending)
                report.bytes += sent
                pending = pending[sent:]
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                select.select([sock], [sock], [], 0.1)
            except OSError as error:
                report.errors[type(error).__name__] += 1
                report.closed_by_server += 1
                _read_rest(sock, received)
                break
            if _read_available(sock, received):
                report.closed_by_server += 1
                break
    report.goaways.update(goaways(received))


def _batch(flood: Iterator[bytes], report: Report) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size < BATCH_BYTES:
        part = next(flood)
        parts.append(part)
        size += len(part)
    report.frames += len(parts)
    return b"".join(parts)


def _read_available(sock: ssl.SSLSocket, received: bytearray) -> bool:
    """Reads what there is; True when the server has closed the connection."""
    try:
        while data := sock.recv(65536):
            received += data
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    except OSError:
        return True
    return True


def _read_rest(sock: ssl.SSLSocket, received: bytearray) -> None:
    sock.setblocking(True)
    sock.settimeout(1.0)
    try:
        while data := sock.recv(65536):
            received += data
    except OSError:
        return


def goaways(received: bytearray) -> list[str]:
    """Returns the names of the error codes of all GOAWAY frames received."""
    found = []
    at = 0
    while len(received) - at >= f.HEADER_SIZE:
        high, low, kind, _, _ = f.HEADER.unpack_from(received, at)
        end = at + f.HEADER_SIZE + (high << 16 | low)
        if kind == f.GOAWAY and end <= len(received):
            _, code = f.GOAWAY_HEAD.unpack_from(received, at + f.HEADER_SIZE)
            found.append(f.ERROR_NAMES.get(code, str(code)))
        at = end
    return found


def shake_hands(target: Target, report: Report, deadline: float) -> None:
    """Completes a TLS handshake and closes."""
    target.shake_hands().close()
    report.connections += 1


def say_hello(target: Target, report: Report, deadline: float, connections: int) -> None:
    """Sends a ClientHello on many connections at once: the server signs an answer to each."""
    assert target.tls is not None, "--ca is required for this kind"
    outgoing = ssl.MemoryBIO()
    client = target.tls.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=target.host)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    opened: list[socket.socket] = []
    try:
        for _ in range(connections):
            opened.append(target.connect())
        for sock in opened:
            sock.sendall(hello)
        for sock in opened:
            sock.recv(1)
    finally:
        report.connections += len(opened)
        report.bytes += len(opened) * len(hello)
        for sock in opened:
            sock.close()


def hold_open(target: Target, report: Report, deadline: float, connections: int) -> None:
    """Holds TCP connections open and sends nothing; replaces those that the server closes."""
    held: list[socket.socket] = []
    try:
        while time.monotonic() < deadline:
            if len(held) < connections:
                try:
                    held.append(target.connect())
                    report.connections += 1
                except OSError as error:
                    report.refused += 1
                    report.errors[type(error).__name__] += 1
                    time.sleep(0.05)
            if len(held) == connections or report.connections % 50 == 0:
                held = _still_open(held, report, 0.05 if len(held) == connections else 0.0)
    finally:
        for sock in held:
            sock.close()


def _still_open(held: list[socket.socket], report: Report, wait: float) -> list[socket.socket]:
    poll = select.poll()
    for sock in held:
        poll.register(sock, select.POLLIN)
    closed = {fd for fd, _ in poll.poll(wait * 1000)}
    for sock in held:
        if sock.fileno() in closed:
            report.closed_by_server += 1
            closed.discard(sock.fileno())
            sock.close()
    return [sock for sock in held if sock.fileno() >= 0]


def run(kind: str, target: Target, seconds: float, connections: int = 300) -> Report:
    """Runs one flood for some time."""
    report = Report(kind)
    began = time.monotonic()
    deadline = began + seconds
    while time.monotonic() < deadline:
        try:
            if kind in ("silent", "health-idle"):
                hold_open(target, report, deadline, connections)
            elif kind == "hellos":
                say_hello(target, report, deadline, connections)
            elif kind == "handshakes":
                shake_hands(target, report, deadline)
            else:
                send_frames(target, report, deadline)
        except OSError as error:
            report.refused += 1
            report.errors[type(error).__name__] += 1
            time.sleep(0.01)
    report.seconds = round(time.monotonic() - began, 3)
    return report


def tls_context(ca: str, cert: str = "", key: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if cert:
        context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["h2"])
    return context


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.floods", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--ca", help="CA certificate of the server")
    parser.add_argument("--cert", default="", help="client certificate, if the attacker has one")
    parser.add_argument("--key", default="")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=300, help="for silent, hellos and health-idle")
    options = parser.parse_args(arguments)
    host, _, port = options.address.rpartition(":")
    tls = tls_context(options.ca, options.cert, options.key) if options.ca else None
    target = Target(host.strip("[]"), int(port), tls)
    print(run(options.kind, target, options.seconds, options.connections).line(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
