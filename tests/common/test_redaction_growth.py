"""The work of a redaction grows linearly with the text, also for hostile input: counted, not timed.

Three things can grow faster: the calls that Python makes, the bytes that a call looks at, and the steps of a
regular expression. The first two are counted. The third cannot be counted, so the form of every expression
is checked: what it reads without a bound, it also consumes, or it begins only once in such a run.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

import pytest

from bootbridge.common import named_values, putty_keys, redaction, secret_formats, secret_names
from bootbridge.common.redaction import Redactor
from tests.support import growth

SIZE = 1 << 15  # much more than the 4 KiB that are looked at around a name
FILLERS = [
    b"A" * 64 + b"\n",
    b"-----BEGIN PRIVATE KEY-----\n",
    b"-----END PRIVATE KEY-----",
    b'\\\\"token": "',
    b"a b c ",
    b"eyJaaaaaaaa-",
    b"login x -p ",
    b"--password\n",
    b"- --token\n- ",
    b"password:\n- a\n",
    b"password: a\n  b\n ",
    b"password: |\n ",
    b'password: """',
    b'password: ["a',
    b"name: token\n value: ",
    b"proxy=a:b",
    b"data:,%41",
    b"kind: Secret ",
    b"chpasswd: list:\n - a:b\n",
    b"machine a password ",
    b" a:1:b:c:",
    b"echo a|",
    b"mysql -",
    b'"keyFile":{data:',
    b"Private-Lines: 999\nAAAA\n",
    b"Private-MAC:",
    b"jdbc:oracle:thin:a/b",
    b"cifs user=a,pass=",
    b"snmpwalk -c a -A b ",
    b"sqlplus a/b ",
    b"$6$abcdefgh\\",
    b"vault login -a ",
    b"A" * 43 + b"=\t",
    b"Basic dTpw ",
]


def redaction_calls(data: bytes) -> int:
    redactor = Redactor([b"0123456789abcdef0123456789abcdef"])
    return growth.calls(lambda: redactor.clean(data))


class CountedBytes(bytes):
    """Counts the bytes that searches and slices look at."""

    looked_at = 0

    def find(self, sub: Any, start: Any = 0, end: Any = None, /) -> int:
        stop = len(self) if end is None else min(end, len(self))
        found = super().find(sub, start, stop)
        self.looked_at += max(0, (stop if found < 0 else found) - start)
        return found

    def rfind(self, sub: Any, start: Any = 0, end: Any = None, /) -> int:
        stop = len(self) if end is None else min(end, len(self))
        found = super().rfind(sub, start, stop)
        self.looked_at += max(0, stop - (start if found < 0 else found))
        return found

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        if isinstance(at, slice):
            self.looked_at += len(range(*at.indices(len(self))))
        return super().__getitem__(at)


def looked_at(data: bytes) -> int:
    total = 0
    for pattern in (named_values._PAIR, named_values._NAMED):
        text = CountedBytes(data)
        named_values._Scan(text).run(pattern)
        total += text.looked_at
    return total


@pytest.mark.parametrize("work", [redaction_calls, looked_at])
@pytest.mark.parametrize("filler", FILLERS, ids=repr)
def test_twice_the_text_is_twice_the_work(filler: bytes, work: Any) -> None:
    once, twice = (work(filler * (size // len(filler))) for size in (SIZE, 2 * SIZE))
    assert twice <= 2.2 * once + 500


def test_a_search_that_begins_anew_at_each_match_is_noticed() -> None:
    """That is: the count of bytes can fail."""

    def quadratic(data: bytes) -> int:
        text = CountedBytes(data)
        for at in range(0, len(text), 16):
            text.find(b"\n", at)
        return text.looked_at

    assert quadratic(b"a" * 2 * SIZE) > 3 * quadratic(b"a" * SIZE)


# --- regular expressions

# Expressions with an unbounded part that is not at their end, and why that is linear all the same.
EXAMINED = {
    "_JWT": "begins only where a run of its characters begins",
    "_SECRET_LINE": "each part ends at a line end, and it begins only where a line begins",
    "_BASE64": "what follows the run is bounded, and the run is consumed",
    "_WORD": "consumes every run of letters, whole",
}


def test_every_expression_is_bounded_or_was_examined() -> None:
    """`a+b` reads a run of `a` again from each of its characters."""
    found = growth.patterns(redaction, named_values, putty_keys, secret_formats, secret_names)
    assert {name for name, each in found.items() if growth.reads_again(each)} == EXAMINED.keys()
