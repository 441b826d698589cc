"""How a deadline is written into a request, and read from one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.wire import grpc_messages as grpc


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0, "1m"),
        (0.0001, "1m"),
        (0.25, "250m"),
        (30, "30000m"),
        (99_999, "99999000m"),
        (200_000, "200000S"),
    ],
)
def test_a_deadline_is_written_in_at_most_eight_digits(seconds: float, written: str) -> None:
    assert grpc.timeout_field(seconds) == ("grpc-timeout", written)


def test_a_deadline_in_years_is_written_too() -> None:
    assert grpc.timeout_field(1e12) == ("grpc-timeout", "99999999S")


@settings(deadline=None)
@given(st.floats(0.001, 99_999_999))
def test_what_is_written_is_read_as_the_same_time(seconds: float) -> None:
    read = grpc.timeout_of([grpc.timeout_field(seconds)])
    assert read == pytest.approx(seconds, abs=0.001 if seconds < 99_000 else 1)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("2H", 7200), ("3M", 180), ("4S", 4), ("5m", 0.005), ("6u", 6e-6), ("7n", 7e-9), ("0S", 0)],
)
def test_every_unit_is_read(written: str, seconds: float) -> None:
    assert grpc.timeout_of([("grpc-timeout", written)]) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "S", "5", "-1S", "1.5S", "123456789S", "5s", "٣S", " 1S"])
def test_a_deadline_that_is_none_is_ignored(written: str) -> None:
    assert grpc.timeout_of([("grpc-timeout", written)]) is None


def test_a_request_without_a_deadline_has_none() -> None:
    assert grpc.timeout_of(grpc.request_headers("/path", "x")) is None
