"""Warnings that peers provoke are few, and the rest is counted."""

from __future__ import annotations

from bootbridge.ports.throttled_log import INTERVAL_SECONDS, LINES_MAX, ThrottledLog


class Recorder:
    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def warning(self, message: str, **fields: object) -> None:
        self.lines.append({"message": message, **fields})

    info = debug = warning


def test_a_flood_of_warnings_becomes_a_few_lines_and_a_number() -> None:
    recorder, now = Recorder(), 100.0
    log = ThrottledLog(recorder, lambda: now)
    for number in range(1000):
        log.warning("agent refused", peer=number)
    assert len(recorder.lines) == LINES_MAX
    now += INTERVAL_SECONDS
    log.warning("agent refused", peer="last")
    assert recorder.lines[-1] == {
        "message": "agent refused",
        "peer": "last",
        "lines_left_out": 1000 - LINES_MAX,
    }
    log.warning("agent refused", peer="next")
    assert "lines_left_out" not in recorder.lines[-1]
