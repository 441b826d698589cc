"""Counters, gauges and histograms, and the page that Prometheus reads (text format 0.0.4).

No I/O, no clock. A hot path looks its child up once::

    from_agent_data = metrics.stream_packets_total.labels("from_agent", "DATA")
    ...
    from_agent_data.value += 1

which is a plain attribute update. A gauge of a table has a function instead of a
value, and reads the table when it is scraped, so that both always agree.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

DEFAULT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

# Not only float: compiled code makes a C double of a float, which cannot represent 2**53 + 1.
Number = int | float
# One line of the exposition: suffix of the name, extra labels, value.
_Sample = tuple[str, str, Number]


class _Number:
    __slots__ = ("_read", "value")

    def __init__(self) -> None:
        self.value: Number = 0
        self._read: Callable[[], Number] | None = None

    def inc(self, amount: Number = 1) -> None:
        self.value += amount

    def set_function(self, read: Callable[[], Number]) -> None:
        """Calls `read` when scraped, instead of showing `value`."""
        self._read = read

    def samples(self) -> Iterator[_Sample]:
        yield "", "", self.value if self._read is None else self._read()


class Counter(_Number):
    """A number that only grows."""

    __slots__ = ()


class Gauge(_Number):
    """A number that goes up and down."""

    __slots__ = ()

    def set(self, value: Number) -> None:
        self.value = value


class Histogram:
    """Counts observations by bucket, and their sum."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum: float = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def samples(self) -> Iterator[_Sample]:
        so_far = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            so_far += count
            yield "_bucket", f'le="{format_number(bound)}"', so_far
        yield "_sum", "", self.sum
        yield "_count", "", so_far


Child = TypeVar("Child", Counter, Gauge, Histogram)


class Family(Generic[Child]):
    """The children of one metric name, one per combination of label values."""

    def __init__(
        self, name: str, kind: str, help: str, labels: Sequence[str], make: Callable[[], Child]
    ) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.label_names = tuple(labels)
        self._make: Callable[[], Child] = make
        self._children: dict[tuple[str, ...], Child] = {}

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}{list(self.label_names)} {len(self._children)} children>"

    def labels(self, *values: str) -> Child:
        """Returns the child with these label values; creates it, and shows it from then on, if it is new."""
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name} has the labels {self.label_names}, not {values}")
            child = self._children[values] = self._make()
        return child

    def preset(self, *values: str) -> Family[Child]:
        """Shows these values of the only label from the start, as zero."""
        for value in values:
            self.labels(value)
        return self

    def items(self) -> list[tuple[tuple[str, ...], Child]]:
        """Returns label values and child of all children."""
        return list(self._children.items())

    def remove(self, *values: str) -> None:
        self._children.pop(values, None)

    def exposition(self) -> Iterator[str]:
        yield f"# HELP {self.name} {_escape_help(self.help)}\n# TYPE {self.name} {self.kind}\n"
        for values, child in self._children.items():
            own = ",".join(
                f'{name}="{_escape_label(value)}"'
                for name, value in zip(self.label_names, values, strict=True)
            )
            for suffix, extra, number in child.samples():
                labels = ",".join(filter(None, (own, extra)))
                yield f"{self.name}{suffix}{{{labels}}} " if labels else f"{self.name}{suffix} "
                yield f"{format_number(number)}\n"


class Registry:
    """The metrics of one process, in the order of creation."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._families: dict[str, Family[Counter] | Family[Gauge] | Family[Histogram]] = {}

    def with_prefix(self, prefix: str) -> Registry:
        """Returns a view of this registry that adds `prefix` to new metric names."""
        view = Registry(self._prefix + prefix)
        view._families = self._families
        return view

    def counter(self, name: str, help: str) -> Counter:
        return self.counters(name, help).labels()

    def gauge(self, name: str, help: str) -> Gauge:
        return self.gauges(name, help).labels()

    def histogram(self, name: str, help: str, *, buckets: Sequence[float] = DEFAULT_BUCKETS) -> Histogram:
        return self.histograms(name, help, buckets=buckets).labels()

    def counters(self, name: str, help: str, *labels: str) -> Family[Counter]:
        family = Family(self._free_name(name, labels), "counter", help, labels, Counter)
        self._families[family.name] = family
        return family

    def gauges(self, name: str, help: str, *labels: str) -> Family[Gauge]:
        family = Family(self._free_name(name, labels), "gauge", help, labels, Gauge)
        self._families[family.name] = family
        return family

    def histograms(
        self, name: str, help: str, *labels: str, buckets: Sequence[float] = DEFAULT_BUCKETS
    ) -> Family[Histogram]:
        if not buckets or list(buckets) != sorted(set(buckets)) or "le" in labels:
            raise ValueError(f"{name}: buckets must increase strictly, and the label 'le' is reserved")
        full_name = self._free_name(name, labels)
        family = Family(full_name, "histogram", help, labels, lambda: Histogram(buckets))
        self._families[family.name] = family
        return family

    def families(self) -> list[Family[Counter] | Family[Gauge] | Family[Histogram]]:
        """Returns all metrics with their names, kinds, labels and help texts."""
        return list(self._families.values())

    def exposition(self) -> str:
        """Returns all metrics in Prometheus' text format; families without children have a header only."""
        return "".join(part for family in self._families.values() for part in family.exposition())

    def _free_name(self, name: str, labels: Sequence[str]) -> str:
        full = self._prefix + name
        if full in self._families:
            raise ValueError(f"metric {full} already exists")
        if not _METRIC_NAME.fullmatch(full):
            raise ValueError(f"{full!r} is not a metric name")
        for label in labels:
            if not _LABEL_NAME.fullmatch(label):
                raise ValueError(f"{full}: {label!r} is not a label name")
        return full


def format_number(number: Number) -> str:
    if isinstance(number, int):
        return str(int(number))
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "+Inf" if number > 0 else "-Inf"
    # Whole numbers without ".0", as in Go: a bucket is le="1", not le="1.0".
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_label(text: str) -> str:
    return _escape_help(text).replace('"', '\\"')
