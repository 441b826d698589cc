"""The log buffer: bounded, readable repeatedly, and free of secrets."""

from __future__ import annotations

import base64
import logging

import pytest

from bootbridge.errors import BootbridgeError
from bootbridge.node.init.log_buffer import LINES_BYTES_MAX, Collector, LogBuffer
from bootbridge.runtime import logs
from tests.support.deterministic_loop import run

SECRET = bytes(range(200, 232))


def text_of(log_buffer: LogBuffer) -> bytes:
    async def read() -> bytes:
        return b"".join([piece async for piece in log_buffer.read()])

    return run(read())


def test_log_lines_of_this_process_are_captured() -> None:
    log_buffer = LogBuffer()
    logger = logging.getLogger("bootbridge.test-logbook")
    logger.addHandler(log_buffer)
    try:
        logs.event("test-logbook", logs.WARNING, "kubeadm failed", code=3)
    finally:
        logger.removeHandler(log_buffer)
    assert b"WARNING test-logbook: kubeadm failed code=3\n" in text_of(log_buffer)


def test_reading_does_not_consume_the_buffer() -> None:
    async def collect() -> bytes:
        return b"from the journal"

    log_buffer = LogBuffer({"journal": collect})
    log_buffer.append("a line")
    assert text_of(log_buffer) == text_of(log_buffer) == b"a line\n\n--- journal\nfrom the journal"


def test_the_buffer_is_bounded_and_keeps_the_newest_lines() -> None:
    log_buffer = LogBuffer()
    for number in range(20_000):
        log_buffer.append(f"{number} " + "x" * 100)
    log_buffer.append("y" * 1_000_000)
    text = text_of(log_buffer)
    assert len(text) <= LINES_BYTES_MAX
    assert b"\n19999 x" in text
    assert b"\n0 x" not in text


def test_chunks_fit_into_a_message() -> None:
    log_buffer = LogBuffer()
    for _ in range(1000):
        log_buffer.append("x" * 100)

    async def sizes() -> list[int]:
        return [len(piece) async for piece in log_buffer.read()]

    assert max(run(sizes())) <= 16 * 1024


@pytest.mark.parametrize(
    "written",
    [
        SECRET.hex(),
        base64.b64encode(SECRET).decode(),
        base64.urlsafe_b64encode(SECRET).decode(),
        "pass phrase",
    ],
    ids=["hex", "base64", "url-safe", "as it is"],
)
def test_known_secrets_are_redacted_in_every_encoding(written: str) -> None:
    log_buffer = LogBuffer()
    log_buffer.append(f"before was noted: {written}!")
    log_buffer.redact(SECRET, b"pass phrase", b"")
    text = text_of(log_buffer)
    assert written.encode() not in text
    assert b"redacted" in text


def test_tokens_and_private_keys_are_redacted() -> None:
    log_buffer = LogBuffer()
    log_buffer.append("kubeadm join 10.0.0.1:6443 --token abcdef.0123456789abcdef")
    log_buffer.append("-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMG\n-----END PRIVATE KEY-----")
    assert b"0123456789abcdef" not in text_of(log_buffer)
    assert b"MIGHAgEAMBMG" not in text_of(log_buffer)


@pytest.mark.parametrize("error", [OSError("journalctl: not found"), BootbridgeError("timed out")])
def test_a_failing_collector_does_not_affect_the_others(error: Exception) -> None:
    async def broken() -> bytes:
        raise error

    async def good() -> bytes:
        return b"good"

    collectors: dict[str, Collector] = {"broken": broken, "good": good}
    text = text_of(LogBuffer(collectors))
    assert f"collecting failed: {error}".encode() in text
    assert text.endswith(b"--- good\ngood")
