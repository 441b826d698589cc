"""Lines about unattested peers: a bounded number, and a count of the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bootbridge.runtime import logs
from bootbridge.trust.attested.refusal_log import (
    LINES_MAX,
    LINES_PER_SOURCE_MAX,
    REASON_CHARACTERS_MAX,
    WINDOW_SECONDS,
    RefusalLog,
)
from tests.support import deterministic_loop


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    return [(each.message, each.fields) for each in caplog.records]  # type: ignore[attr-defined]


def test_one_source_gets_a_few_lines_and_leaves_room_for_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        refusals = RefusalLog()
        for _ in range(1000):
            refusals.evidence_refused("192.0.2.1", "forged")
        for number in range(100):
            refusals.evidence_refused(f"fd00::{number:x}", "forged")  # one /64 is one source
        refusals.evidence_refused("192.0.2.2", "not enrolled")
        written = [fields["peer"] for _, fields in lines(caplog)]
        assert written == ["192.0.2.1"] * 3 + ["fd00::0", "fd00::1", "fd00::2", "192.0.2.2"]
        assert (refusals.refused, refusals.dropped) == (1101, 1094)
        refusals.close()
        last = {"count": 1094, "last_peer": "fd00::63", "last_reason": "forged"}
        assert lines(caplog)[-1] == ("lines about unattested peers dropped", last)

    deterministic_loop.run(scenario())


def test_a_window_has_a_bounded_number_of_lines_and_then_the_count(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        refusals = RefusalLog()
        for _ in range(3):
            caplog.clear()
            for number in range(500):
                refusals.evidence_refused(f"192.0.2.{number % 250}", "forged")
            assert len(lines(caplog)) == LINES_MAX
            await asyncio.sleep(WINDOW_SECONDS + 1)
            last = {"count": 500 - LINES_MAX, "last_peer": "192.0.2.249", "last_reason": "forged"}
            assert lines(caplog)[LINES_MAX:] == [("lines about unattested peers dropped", last)]
        caplog.clear()
        refusals.close()
        assert lines(caplog) == [], "counted already"

    deterministic_loop.run(scenario())


def test_without_dropped_lines_no_count_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        refusals = RefusalLog()
        for _ in range(LINES_PER_SOURCE_MAX):
            refusals.event(logs.ERROR, "channel failed", "192.0.2.1", "TPM busy")
        await asyncio.sleep(WINDOW_SECONDS + 1)
        assert [message for message, _ in lines(caplog)] == ["channel failed"] * LINES_PER_SOURCE_MAX

    deterministic_loop.run(scenario())


def test_a_long_reason_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        refusals = RefusalLog()
        refusals.evidence_refused("192.0.2.1", "x" * 10_000)
        assert lines(caplog)[0][1]["reason"] == "x" * REASON_CHARACTERS_MAX
        refusals.close()

    deterministic_loop.run(scenario())
