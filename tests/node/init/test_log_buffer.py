"""The logbook: what a user may read after a failure, any number of times, and what never comes out of it."""

from __future__ import annotations

import base64
import logging

import pytest

from bootbridge.errors import BootbridgeError
from bootbridge.node.init.log_buffer import LINES_BYTES_MAX, Collector, Logbook
from bootbridge.runtime import logs
from tests.support.deterministic_loop import run

SECRET = bytes(range(200, 232))


def text_of(logbook: Logbook) -> bytes:
    async def read() -> bytes:
        return b"".join([piece async for piece in logbook.read()])

    return run(read())


def test_it_keeps_what_this_process_logs() -> None:
    logbook = Logbook()
    logger = logging.getLogger("test-logbook")
    logger.addHandler(logbook)
    try:
        logs.event("test-logbook", logs.WARNING, "kubeadm failed", code=3)
    finally:
        logger.removeHandler(logbook)
    assert b"WARNING test-logbook: kubeadm failed code=3\n" in text_of(logbook)


def test_it_can_be_read_again() -> None:
    async def collect() -> bytes:
        return b"from the journal"

    logbook = Logbook({"journal": collect})
    logbook.note("a line")
    assert text_of(logbook) == text_of(logbook) == b"a line\n\n--- journal\nfrom the journal"


def test_it_is_bounded_and_keeps_the_newest() -> None:
    logbook = Logbook()
    for number in range(20_000):
        logbook.note(f"{number} " + "x" * 100)
    logbook.note("y" * 1_000_000)
    text = text_of(logbook)
    assert len(text) <= LINES_BYTES_MAX
    assert b"\n19999 x" in text
    assert b"\n0 x" not in text


def test_it_comes_in_pieces_that_fit_a_message() -> None:
    logbook = Logbook()
    for _ in range(1000):
        logbook.note("x" * 100)

    async def sizes() -> list[int]:
        return [len(piece) async for piece in logbook.read()]

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
def test_known_secrets_do_not_come_out_in_any_shape(written: str) -> None:
    logbook = Logbook()
    logbook.note(f"before was noted: {written}!")
    logbook.hide(SECRET, b"pass phrase", b"")
    text = text_of(logbook)
    assert written.encode() not in text
    assert b"redacted" in text


def test_tokens_and_private_keys_do_not_come_out_either() -> None:
    logbook = Logbook()
    logbook.note("kubeadm join 10.0.0.1:6443 --token abcdef.0123456789abcdef")
    logbook.note("-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMG\n-----END PRIVATE KEY-----")
    assert b"0123456789abcdef" not in text_of(logbook)
    assert b"MIGHAgEAMBMG" not in text_of(logbook)


@pytest.mark.parametrize("error", [OSError("journalctl: not found"), BootbridgeError("timed out")])
def test_a_collector_that_fails_costs_only_its_own_part(error: Exception) -> None:
    async def broken() -> bytes:
        raise error

    async def good() -> bytes:
        return b"good"

    collectors: dict[str, Collector] = {"broken": broken, "good": good}
    text = text_of(Logbook(collectors))
    assert f"cannot be collected: {error}".encode() in text
    assert text.endswith(b"--- good\ngood")
