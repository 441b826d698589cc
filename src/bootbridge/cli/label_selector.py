"""The grammar of Kubernetes label selectors, checked before an agent starts to ask with one.

``a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1``: requirements joined by commas; the empty
selector picks everything. ``check`` returns the selector as given or raises
``ValueError`` with the reason.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\s*(?:(==|!=|[=!<>(),])|([^\s=!<>(),]+))")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DNS_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_SYMBOLS = frozenset(("==", "!=", "=", "!", "<", ">", "(", ")", ","))
_NAME_LENGTH_MAX, _PREFIX_LENGTH_MAX = 63, 253
_END = ""


def check(selector: str) -> str:
    tokens = _Tokens(selector)
    if tokens.peek() != _END:
        _requirement(tokens)
        while tokens.peek() == ",":
            tokens.take()
            _requirement(tokens)
        if tokens.peek() != _END:
            raise ValueError(f"found '{tokens.peek()}', expected: ',' or 'end of string'")
    return selector


class _Tokens:
    """The selector's symbols and words, with one of look-ahead."""

    def __init__(self, selector: str) -> None:
        self._tokens = [symbol or word for symbol, word in _TOKEN.findall(selector)] + [_END]
        self._position = 0

    def peek(self) -> str:
        return self._tokens[self._position]

    def take(self) -> str:
        token = self._tokens[self._position]
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return token


def _requirement(tokens: _Tokens) -> None:
    negated = tokens.peek() == "!"
    if negated:
        tokens.take()
    key = tokens.take()
    if key == _END or key in _SYMBOLS:
        raise ValueError(f"found '{key}', expected: identifier")
    _check_key(key)
    if tokens.peek() in (_END, ","):
        return
    operator = tokens.take()
    if negated:
        raise ValueError(f"found '{operator}', expected: ',' or 'end of string' after '!{key}'")
    _operand(tokens, key, operator)


def _operand(tokens: _Tokens, key: str, operator: str) -> None:
    if operator in ("in", "notin"):
        _value_set(tokens)
    elif operator in ("=", "==", "!=", "<", ">"):
        value = _END if tokens.peek() in (_END, ",") else tokens.take()
        if value in _SYMBOLS:
            raise ValueError(f"found '{value}', expected: identifier")
        if operator in ("<", ">") and not _INTEGER.fullmatch(value):
            raise ValueError(f"{key} {operator} needs an integer, got '{value}'")
        _check_value(value)
    else:
        raise ValueError(f"found '{operator}', expected: in, notin, =, ==, !=, >, <")


def _value_set(tokens: _Tokens) -> None:
    if (opening := tokens.take()) != "(":
        raise ValueError(f"found '{opening}' expected: '('")
    after_word = False
    while (token := tokens.take()) != ")":
        # Empty values are allowed, so commas may follow each other; words may not.
        if token == _END or (token in _SYMBOLS and token != ",") or (after_word and token != ","):
            raise ValueError(f"found '{token}', expected: ',' or ')'")
        after_word = token != ","
        if after_word:
            _check_value(token)


def _check_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= _PREFIX_LENGTH_MAX and _SUBDOMAIN.fullmatch(prefix)):
        raise ValueError(f"the prefix of label key '{key}' is not a DNS subdomain")
    if len(name) > _NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise ValueError(f"'{key}' is not a label key")


def _check_value(value: str) -> None:
    if value and (len(value) > _NAME_LENGTH_MAX or not _NAME.fullmatch(value)):
        raise ValueError(f"'{value}' is not a label value")
