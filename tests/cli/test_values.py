"""Flag values are read, and refused, as Go reads and refuses them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.cli import values
from bootbridge.options import format_duration, format_nanoseconds

NANOSECONDS = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)


@given(NANOSECONDS)
def test_every_duration_survives_being_printed_and_read(nanoseconds):
    """What Go style printing writes, Go style reading gives back to the nanosecond."""
    assert values.parse_nanoseconds(format_nanoseconds(nanoseconds)) == nanoseconds


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_seconds_keep_the_nanoseconds_of_any_sane_duration(nanoseconds):
    """Options hold floats of seconds; within eleven days nothing is lost by that."""
    text = format_nanoseconds(nanoseconds)
    assert format_duration(values.parse_duration(text)) == text


@given(st.text(max_size=12))
def test_any_text_at_all_is_a_duration_or_a_clear_refusal(text):
    """Garbage never escapes as another exception."""
    with contextlib.suppress(ValueError):
        assert isinstance(values.parse_nanoseconds(text), int)


@pytest.mark.parametrize(
    ("text", "seconds", "printed"),
    [
        ("0", 0.0, "0s"),
        ("+0", 0.0, "0s"),
        ("1h", 3600.0, "1h0m0s"),
        ("1h30m", 5400.0, "1h30m0s"),
        ("90m", 5400.0, "1h30m0s"),
        ("61s", 61.0, "1m1s"),
        ("500ms", 0.5, "500ms"),
        ("1.5s", 1.5, "1.5s"),
        (".5s", 0.5, "500ms"),
        ("1.s", 1.0, "1s"),
        ("-1s", -1.0, "-1s"),
        ("+10s", 10.0, "10s"),
        ("1µs", 1e-6, "1µs"),
        ("1us", 1e-6, "1µs"),
        ("1μs", 1e-6, "1µs"),
        ("1500ns", 1.5e-6, "1.5µs"),
        ("7ns", 7e-9, "7ns"),
    ],
)
def test_durations_are_read_and_printed_like_go(text, seconds, printed):
    """Several spellings in, one spelling out."""
    assert values.parse_duration(text) == pytest.approx(seconds, abs=1e-12)
    assert format_duration(values.parse_duration(text)) == printed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        ("5", 'time: missing unit in duration "5"'),
        ("5x", 'time: unknown unit "x" in duration "5x"'),
        (".s", 'time: invalid duration ".s"'),
        ("s", 'time: invalid duration "s"'),
        ("1h ", 'time: unknown unit "h " in duration "1h "'),
        ("3000000h", 'time: invalid duration "3000000h"'),
        ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
    ],
)
def test_an_invalid_duration_is_refused_with_the_error_of_go(text, reason):
    """The reason is Go's, so that it can be searched for."""
    with pytest.raises(ValueError) as refusal:
        values.parse_duration(text)
    assert str(refusal.value) == reason


def test_the_longest_negative_duration_is_one_nanosecond_longer_than_the_positive():
    """Two's complement: Go takes this one, and not its opposite."""
    assert values.parse_nanoseconds("-9223372036854775808ns") == -(1 << 63)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8091", 8091),
        ("+5", 5),
        ("-10", -10),
        ("0x10", 16),
        ("010", 8),
        ("0b11", 3),
        ("0o17", 15),
        ("1_000", 1000),
        ("0x_1f", 31),
        ("0", 0),
        ("00", 0),
        ("-010", -8),
    ],
)
def test_integers_take_the_bases_that_go_takes(text, number):
    """A leading zero is octal, as it always was there."""
    assert values.parse_int(text) == number


@pytest.mark.parametrize("text", ["", "-", "x", "1.5", "08", "0_8", " 1", "1 ", "٣", "1__0", "0x"])
def test_an_invalid_integer_is_rejected(text):
    """Blanks and foreign digits included, which Python alone would take."""
    with pytest.raises(ValueError, match=r"^strconv\.ParseInt: parsing .*: invalid syntax$"):
        values.parse_int(text)


def test_an_integer_must_fit_into_64_bits():
    """The edge itself is fine, one more is not."""
    assert values.parse_int("9223372036854775807") == (1 << 63) - 1
    with pytest.raises(ValueError, match="value out of range"):
        values.parse_int("9223372036854775808")


@pytest.mark.parametrize(
    ("texts", "value"),
    [(("1", "t", "T", "TRUE", "true", "True"), True), (("0", "f", "F", "FALSE", "false", "False"), False)],
)
def test_the_spellings_of_a_bool(texts, value):
    assert all(values.parse_bool(text) is value for text in texts)


@pytest.mark.parametrize("text", ["", "yes", "no", "tRUE", "on", " true"])
def test_an_invalid_bool_is_refused(text):
    """The error quotes the word."""
    with pytest.raises(ValueError, match=r"^strconv\.ParseBool: parsing .*: invalid syntax$"):
        values.parse_bool(text)


@pytest.mark.parametrize(("text", "number"), [("0", 0.0), ("1e3", 1000.0), (".5", 0.5), ("5.", 5.0)])
def test_floats(text, number):
    """--kubeconfig-qps is the only one."""
    assert values.parse_float(text) == number


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "invalid syntax"),
        ("", "invalid syntax"),
        ("1e40", "value out of range"),
        (" 1", "invalid syntax"),
    ],
)
def test_bad_floats(text, reason):
    """Too large for 32 bits is too large."""
    with pytest.raises(ValueError, match=reason):
        values.parse_float(text)


@pytest.mark.parametrize(
    ("text", "items"),
    [("", ()), ("a", ("a",)), ("a,b", ("a", "b")), ("a,,b", ("a", "", "b")), ('"a,b",c', ("a,b", "c"))],
)
def test_lists_are_one_line_of_csv(text, items):
    """Quotes protect a comma."""
    assert values.parse_list(text) == items


def test_an_unclosed_quote_is_refused():
    with pytest.raises(ValueError):
        values.parse_list('"a,b')


@pytest.mark.parametrize(
    ("text", "number"), [("INFO", 0), ("warning", 1), ("Error", 2), ("FATAL", 3), ("1", 1)]
)
def test_klog_severities_by_name_and_number(text, number):
    """Manifests use both."""
    assert values.parse_severity(text) == number


@pytest.mark.parametrize("text", ["-1", "+1", "x", "", "1.5"])
def test_a_log_size_is_unsigned(text):
    """With Go's error."""
    with pytest.raises(ValueError, match=r"^parse error$"):
        values.parse_size(text)
