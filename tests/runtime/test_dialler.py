"""Dialling names with several addresses, with a controlled resolver and real sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest

from bootbridge.metrics import Registry
from bootbridge.ports.byte_ports import BytePort
from bootbridge.runtime import event_loop
from bootbridge.runtime.destination_policy import DestinationPolicy
from bootbridge.runtime.dialler import TcpDialler
from bootbridge.runtime.pump import Pump


class Result:
    """Keeps the answer of one dial; closes the connection."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.error: str | None = None

    def on_dialled(self, port: BytePort) -> Result:
        port.abort()
        self.answered.set()
        return self

    def on_dial_failed(self, error: str, timed_out: bool) -> None:
        self.error = error
        self.answered.set()

    def on_bytes(self, data: memoryview) -> None: ...
    def on_drained(self) -> None: ...
    def on_eof(self, gone: bool) -> None: ...
    def on_lost(self, reason: str) -> None: ...


def dial(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], policy: DestinationPolicy, port: int
) -> tuple[str | None, Registry]:
    """Dials a name with these addresses; returns the error, or None if it connected."""
    registry = Registry()
    refusals = registry.counters("refused", "help", "rule")

    def resolve(host: str, port: int, type: int = 0) -> list[object]:
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [
            (family[":" in each], type, 6, "", (each, port, 0, 0)[: 4 if ":" in each else 2])
            for each in addresses
        ]

    result = None

    async def run() -> int:
        nonlocal result
        result = Result()
        pump = Pump(event_loop.running_loop())
        with monkeypatch.context() as patched:
            patched.setattr(socket, "getaddrinfo", resolve)
            TcpDialler(pump, policy, refusals).dial("tcp", f"pod.example:{port}", result)
            await result.answered.wait()
        return 0

    event_loop.run(run())
    assert result is not None
    return result.error, registry


def test_only_permitted_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that an attacker controls may resolve to anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        policy = DestinationPolicy(("127.0.0.1/32",))
        found = ["169.254.169.254", "::1", "127.0.0.2", "127.0.0.1"]
        error, registry = dial(monkeypatch, found, policy, port)
        assert error is None
        connection, peer = listener.accept()
        connection.close()
        assert peer[0] == "127.0.0.1"
        assert 'refused{rule="default rule link-local 169.254.0.0/16"} 1' in registry.exposition()
        assert 'refused{rule="default rule loopback ::1/128"} 1' in registry.exposition()


def test_the_error_names_the_first_refused_address(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ["169.254.169.254", "fe80::1%eth0", "127.0.0.1"]
    error, _ = dial(monkeypatch, found, DestinationPolicy(), 80)
    rule = "default rule link-local 169.254.0.0/16"
    assert error == f"dial tcp 169.254.169.254:80: destination refused by {rule}"
