"""Labels: the map a lease carries, and the selector language that picks leases by it.

The grammar is the one of Kubernetes' own selectors: requirements joined by commas,
``a=b``, ``a==b``, ``a!=b``, ``a in (b,c)``, ``a notin (b,c)``, ``a``, ``!a``, ``a>1``, ``a<1``.
``!=`` and ``notin`` are true where the label is missing. The empty selector takes everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from bootbridge.errors import BootbridgeError

_TOKEN = re.compile(r"[ \t\r\n]*(==|!=|[=!(),<>]|[^ \t\r\n=!(),<>]+)")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_SPECIAL = frozenset(["=", "==", "!=", "!", "(", ")", ",", "<", ">"])
_END = ""


class LabelError(BootbridgeError):
    """A label map or selector that cannot be understood."""


class Operator(StrEnum):
    EXISTS = "exists"
    MISSING = "!"
    IN = "in"
    NOT_IN = "notin"
    GREATER = ">"
    LESS = "<"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label; ``a=b`` is ``IN {b}`` and ``a!=b`` is ``NOT_IN {b}``."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case Operator.EXISTS:
                return value is not None
            case Operator.MISSING:
                return value is None
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
        return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        if value is None or not _INTEGER.fullmatch(value):
            return False
        (bound,) = self.values
        return int(value) > int(bound) if self.operator is Operator.GREATER else int(value) < int(bound)

    def __str__(self) -> str:
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.MISSING:
                return f"!{self.key}"
            case Operator.GREATER | Operator.LESS:
                return f"{self.key}{self.operator}{next(iter(self.values))}"
        if len(self.values) == 1:
            sign = "=" if self.operator is Operator.IN else "!="
            return f"{self.key}{sign}{next(iter(self.values))}"
        return f"{self.key} {self.operator} ({','.join(sorted(self.values))})"


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that must all hold."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Selector:
        return cls(_Parser(text).selector())

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Selector:
        """The selector that takes exactly what carries these labels."""
        return cls(tuple(Requirement(k, Operator.IN, frozenset({v})) for k, v in sorted(labels.items())))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


def parse_label_map(text: str) -> dict[str, str]:
    """``a=b,c=d`` as ``--lease-label`` takes it; the error texts are part of the command line's promise."""
    if not text:
        raise LabelError("empty string provided")
    labels = {}
    for pair in text.split(","):
        key, *values = pair.split("=")
        if len(values) != 1:
            raise LabelError(f"invalid label format: {pair}")
        labels[key.strip()] = values[0].strip()
    return labels


class _Parser:
    """Recursive descent over the tokens; ``in`` and ``notin`` are words only where an operator may stand."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = _TOKEN.findall(text)
        self._at = 0

    def selector(self) -> tuple[Requirement, ...]:
        requirements: list[Requirement] = []
        if self._peek() == _END:
            return ()
        while True:
            requirements.append(self._requirement())
            token = self._next()
            if token == _END:
                return tuple(requirements)
            if token != ",":
                raise self._unexpected(token, "',' or the end")

    def _requirement(self) -> Requirement:
        if self._peek() == "!":
            self._next()
            return Requirement(self._key(), Operator.MISSING)
        key = self._key()
        match self._peek():
            case "" | ",":
                return Requirement(key, Operator.EXISTS)
            case "=" | "==":
                return Requirement(key, Operator.IN, self._one_value())
            case "!=":
                return Requirement(key, Operator.NOT_IN, self._one_value())
            case "in":
                return Requirement(key, Operator.IN, self._value_list())
            case "notin":
                return Requirement(key, Operator.NOT_IN, self._value_list())
            case "<" | ">" as sign:
                return Requirement(key, Operator(sign), self._integer())
        raise self._unexpected(self._next(), "in, notin, =, ==, !=, < or >")

    def _key(self) -> str:
        key = self._next()
        if key in _SPECIAL or key == _END:
            raise self._unexpected(key, "a label name")
        prefix, slash, name = key.rpartition("/")
        prefix_fits = not slash or (len(prefix) <= 253 and _PREFIX.fullmatch(prefix))
        if not prefix_fits or not _NAME.fullmatch(name):
            raise LabelError(f"{self._text!r}: {key!r} is not a valid label name")
        return key

    def _one_value(self) -> frozenset[str]:
        self._next()
        if self._peek() in (_END, ","):
            return frozenset({""})
        return frozenset({self._value()})

    def _integer(self) -> frozenset[str]:
        (value,) = self._one_value()
        if not _INTEGER.fullmatch(value):
            raise LabelError(f"{self._text!r}: {value!r} is not a whole number")
        return frozenset({value})

    def _value_list(self) -> frozenset[str]:
        self._next()
        if (token := self._next()) != "(":
            raise self._unexpected(token, "'('")
        values = set()
        while True:
            values.add("" if self._peek() in (",", ")") else self._value())
            token = self._next()
            if token == ")":
                return frozenset(values)
            if token != ",":
                raise self._unexpected(token, "',' or ')'")

    def _value(self) -> str:
        value = self._next()
        if value in _SPECIAL or value == _END:
            raise self._unexpected(value, "a label value")
        if not _NAME.fullmatch(value):
            raise LabelError(f"{self._text!r}: {value!r} is not a valid label value")
        return value

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _unexpected(self, token: str, expected: str) -> LabelError:
        found = repr(token) if token else "the end"
        return LabelError(f"{self._text!r}: found {found}, expected {expected}")
