"""Measures of work that do not depend on the machine: steps of Python, and the form of regular expressions.

A clock would decide differently on a busy machine. The steps inside a regular expression cannot be counted;
whether they can grow faster than the text follows from the expression's form.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import FrameType, ModuleType
from typing import Any

_EVERY = frozenset(range(256))


def calls(action: Callable[[], object]) -> int:
    """Returns how many functions are called, in Python and C."""
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def lines(action: Callable[[], object], *, package: str = "") -> int:
    """Returns how many lines of Python are executed, in one package or all; compiled ones are not counted."""
    count = 0

    def traced(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not str(frame.f_globals.get("__name__")).startswith(package):
            return None
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def patterns(*modules: ModuleType) -> dict[str, re.Pattern[Any]]:
    """Returns the compiled expressions of modules, by name."""
    return {
        name: each
        for module in modules
        for name, each in vars(module).items()
        if isinstance(each, re.Pattern)
    }


def reads_again(pattern: re.Pattern[Any]) -> bool:
    """Whether a search may read one run of characters from each of its positions: `a+b` in a text of `a`.

    That is: whether a repetition without a bound is followed by something that may fail.
    """
    return _unbounded_before_the_end(parser.parse(pattern.pattern, pattern.flags), at_end=True)


def _unbounded_before_the_end(parsed: Any, *, at_end: bool) -> bool:
    for number, (op, argument) in enumerate(parsed):
        last = at_end and number == len(parsed) - 1
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            inner_last = last and argument[1] == 1
            unbounded = argument[1] == ops.MAXREPEAT and not last
            if unbounded or _unbounded_before_the_end(argument[2], at_end=inner_last):
                return True
        elif any(_unbounded_before_the_end(each, at_end=last) for each in _inner(op, argument)):
            return True
    return False


def backtracks(pattern: re.Pattern[Any]) -> bool:
    """Whether an anchored match may give back characters: `a*a*b`, `(a|b)*c`, `.*x`.

    It cannot if each repetition without a bound is of one set of characters, none of which may follow it.
    """
    return _is_ambiguous(list(parser.parse(pattern.pattern, pattern.flags)), frozenset())


def _is_ambiguous(sequence: list[tuple[Any, Any]], after: frozenset[int]) -> bool:
    for number, (op, argument) in enumerate(sequence):
        following = _first(sequence[number + 1 :], after)
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            inner = list(argument[2])
            if argument[1] == ops.MAXREPEAT and (len(inner) != 1 or _set(*inner[0]) & following):
                return True
            if _is_ambiguous(inner, following):
                return True
        elif any(_is_ambiguous(list(each), following) for each in _inner(op, argument)):
            return True
    return False


def _inner(op: Any, argument: Any) -> Iterable[Any]:
    if op is ops.SUBPATTERN:
        return [argument[3]]
    return argument[1] if op is ops.BRANCH else []


def _first(sequence: list[tuple[Any, Any]], after: frozenset[int]) -> frozenset[int]:
    """Returns the characters that may come first in a sequence; `after` follows it."""
    if not sequence:
        return after
    (op, argument), rest = sequence[0], sequence[1:]
    if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
        found = _first(list(argument[2]), frozenset())
        return found if argument[0] else found | _first(rest, after)
    if op is ops.SUBPATTERN:
        return _first([*argument[3], *rest], after)
    if op is ops.BRANCH:
        return frozenset().union(*(_first([*each, *rest], after) for each in argument[1]))
    return _set(op, argument)


def _set(op: Any, argument: Any) -> frozenset[int]:
    """Returns the characters that one element matches; all of them where that is not obvious."""
    if op is ops.LITERAL:
        return frozenset({argument})
    if op is ops.NOT_LITERAL:
        return _EVERY - {argument}
    if op is not ops.IN:
        return _EVERY
    found: set[int] = set()
    for kind, value in argument:
        if kind is ops.RANGE:
            found |= set(range(value[0], value[1] + 1))
        elif kind is ops.LITERAL:
            found.add(value)
        elif kind is not ops.NEGATE:
            return _EVERY
    return _EVERY - found if argument[0][0] is ops.NEGATE else frozenset(found)
