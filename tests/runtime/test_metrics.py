"""Our metrics page, read back by Prometheus' own parser."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from bootbridge.metrics import Registry

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(registry: Registry) -> Samples:
    """All samples of the page, by name and labels, as Prometheus understands them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(registry.exposition())
        for sample in family.samples
    }


def test_a_counter_is_a_plain_attribute_and_shows_its_value() -> None:
    """A child resolved once is updated by attribute and read back by the parser."""
    registry = Registry("bb_")
    packets = registry.counters("packets_total", "Packets.", "segment", "packet_type")
    child = packets.labels("from_agent", "DATA")
    child.value += 3

    assert packets.labels("from_agent", "DATA") is child
    assert scrape(registry) == {
        ("bb_packets_total", (("packet_type", "DATA"), ("segment", "from_agent"))): 3.0
    }


def test_the_page_is_exactly_this() -> None:
    """HELP and TYPE precede the samples; whole numbers have no fraction; an idle family announces itself."""
    registry = Registry()
    registry.counter("a_total", "First.").inc()
    registry.gauges("b", "Second\nline \\.", "who").labels('x"y\\z\n').set(1.5)
    registry.counters("c_total", "Idle.", "who")

    assert registry.exposition() == (
        "# HELP a_total First.\n# TYPE a_total counter\na_total 1\n"
        '# HELP b Second\\nline \\\\.\n# TYPE b gauge\nb{who="x\\"y\\\\z\\n"} 1.5\n'
        "# HELP c_total Idle.\n# TYPE c_total counter\n"
    )


def test_a_gauge_function_is_asked_at_scrape_time_with_and_without_labels() -> None:
    """A gauge that mirrors a table says what the table says at that moment."""
    registry = Registry()
    table: list[int] = []
    registry.gauge("plain", "").set_function(lambda: len(table))
    registry.gauges("labelled", "", "kind").labels("x").set_function(lambda: 10 * len(table))
    before = scrape(registry)
    table += [1, 2]

    assert list(before.values()) == [0, 0]
    assert scrape(registry) == {("plain", ()): 2, ("labelled", (("kind", "x"),)): 20}


def test_preset_label_values_show_as_zero_and_removed_ones_vanish() -> None:
    """Known label values are visible before the first event; a removed child is not shown."""
    registry = Registry()
    failures = registry.counters("failures_total", "", "reason").preset("timeout", "unknown")
    failures.remove("unknown")

    assert scrape(registry) == {("failures_total", (("reason", "timeout"),)): 0}


def test_histogram_bounds_are_inclusive_and_cumulative() -> None:
    """An observation equal to a bound counts below it, and every bucket counts all smaller ones."""
    registry = Registry()
    durations = registry.histogram("seconds", "", buckets=(0.5, 1, 2.5))
    for value in (0.1, 0.5, 1.0, 2.0, 99.0):
        durations.observe(value)

    assert scrape(registry) == {
        ("seconds_bucket", (("le", "0.5"),)): 2,
        ("seconds_bucket", (("le", "1"),)): 3,
        ("seconds_bucket", (("le", "2.5"),)): 4,
        ("seconds_bucket", (("le", "+Inf"),)): 5,
        ("seconds_sum", ()): pytest.approx(102.6),
        ("seconds_count", ()): 5,
    }
    assert durations.count == 5


def test_labelled_histograms_keep_their_labels_beside_le() -> None:
    """Own labels and `le` stand together, and default buckets are the usual ones."""
    registry = Registry()
    registry.histograms("latency_seconds", "", "http_status_code").labels("200").observe(0.2)

    samples = scrape(registry)
    assert samples[("latency_seconds_bucket", (("http_status_code", "200"), ("le", "0.1")))] == 0
    assert samples[("latency_seconds_bucket", (("http_status_code", "200"), ("le", "0.25")))] == 1
    assert samples[("latency_seconds_count", (("http_status_code", "200"),))] == 1


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=40))
def test_any_histogram_agrees_with_counting_by_hand(values: list[float]) -> None:
    """Each bucket holds exactly the observations that are not larger than its bound."""
    registry = Registry()
    bounds = (-10.0, 0.0, 1e-6, 2.5, 1e6)
    histogram = registry.histogram("h", "", buckets=bounds)
    for value in values:
        histogram.observe(value)

    buckets = [v for (name, _), v in scrape(registry).items() if name == "h_bucket"]
    assert buckets == [sum(v <= bound for v in values) for bound in (*bounds, math.inf)]


# Text that can reach a label: anything, as a peer may choose it. Lone surrogates cannot be sent as UTF-8.
any_text = st.text(st.characters(exclude_categories=["Cs"]))


def unescaped(text: str, *, quotes: bool) -> str:
    """The format's three escapes undone, written down independently of the code under test."""
    meaning = {"\\\\": "\\", "\\n": "\n"} | ({'\\"': '"'} if quotes else {})
    result, position = "", 0
    while position < len(text):
        pair = text[position : position + 2]
        result += meaning.get(pair, text[position])
        position += 2 if pair in meaning else 1
    return result


@given(any_text, any_text)
def test_any_label_value_stays_on_its_line_and_reads_back_unchanged(first: str, second: str) -> None:
    """No label value can break its line or forge another sample."""
    registry = Registry()
    registry.gauges("g", "Help.", "first", "second").labels(first, second).set(7)

    lines = registry.exposition().split("\n")
    assert lines[:2] == ["# HELP g Help.", "# TYPE g gauge"]
    assert lines[3:] == [""]
    # A quote inside a value is always escaped, so a bare one ends the value.
    match = re.fullmatch(r'g\{first="((?:[^"\\]|\\.)*)",second="((?:[^"\\]|\\.)*)"\} 7', lines[2], re.DOTALL)
    assert match is not None
    assert [unescaped(text, quotes=True) for text in match.groups()] == [first, second]


@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF)))
def test_prometheus_reads_back_any_printable_label_value(value: str) -> None:
    """The reference parser sees the very value that was given, quotes, backslashes and braces included."""
    registry = Registry()
    registry.gauges("g", "", "v").labels(value).set(7)

    assert scrape(registry) == {("g", (("v", value),)): 7}


@given(any_text)
def test_any_help_text_stays_on_its_line(help_text: str) -> None:
    """A help text cannot break out of its comment."""
    registry = Registry()
    registry.gauge("g", help_text)
    lines = registry.exposition().split("\n")

    assert lines[1:] == ["# TYPE g gauge", "g 0", ""]
    assert unescaped(lines[0].removeprefix("# HELP g "), quotes=False) == help_text


@given(st.one_of(st.floats(), st.integers(-(2**63), 2**63)))
def test_any_number_reads_back_unchanged(number: float) -> None:
    """Infinities, NaN, tiny, huge and whole numbers survive the page."""
    registry = Registry()
    registry.gauge("g", "").set(number)
    (seen,) = scrape(registry).values()

    assert seen == number or (math.isnan(seen) and math.isnan(number))


@pytest.mark.parametrize("mistake", ["twice", "bad name", "label", "label_count", "buckets", "le"])
def test_mistakes_in_definitions_are_refused(mistake: str) -> None:
    """What would give an unreadable page is refused when it is defined."""
    registry = Registry()
    registry.counter("twice", "")
    attempts = {
        "twice": lambda: registry.gauge("twice", ""),
        "bad name": lambda: registry.gauge("bad name", ""),
        "label": lambda: registry.gauges("g", "", "bad-label"),
        "label_count": lambda: registry.gauges("g", "", "one").labels("1", "2"),
        "buckets": lambda: registry.histogram("h", "", buckets=(2, 1)),
        "le": lambda: registry.histograms("h", "", "le"),
    }

    with pytest.raises(ValueError):
        attempts[mistake]()
