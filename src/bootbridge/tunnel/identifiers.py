"""Agent identifiers: the hosts, addresses and networks that an agent advertises.

The text is a URL query with the keys ``ipv4``, ``ipv6``, ``host``, ``cidr`` and ``default-route``; a
repeated key adds a value. A server skips unknown keys, so that newer agents may send more; an agent
rejects them at its start, so that a typo is found. An invalid CIDR stays in the list, is reported by
``invalid_cidrs`` and matches nothing. Number and length are checked before anything is parsed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote_to_bytes

from bootbridge.wire.addresses import IPNetwork, comparable_host, parse_cidr

KNOWN_KEYS = frozenset({"ipv4", "ipv6", "host", "cidr", "default-route"})
IDENTIFIERS_MAX = 64
# Of one ``key=value`` as it is sent: a DNS name has at most 253.
IDENTIFIER_CHARS_MAX = 272

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})  # as Go's ParseBool
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)


@dataclass(frozen=True)
class AgentIdentifiers:
    """What one agent advertises, in the given order."""

    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    cidr: tuple[str, ...] = ()
    default_route: bool = False

    @cached_property
    def comparable_hosts(self) -> tuple[str, ...]:
        """Every name and address once, normalised for comparison."""
        return tuple(dict.fromkeys(map(comparable_host, self.ipv4 + self.ipv6 + self.host)))

    @cached_property
    def networks(self) -> tuple[IPNetwork, ...]:
        """The networks of the valid CIDRs, each once."""
        return tuple(dict.fromkeys(network for network in map(parse_cidr, self.cidr) if network is not None))

    @cached_property
    def invalid_cidrs(self) -> tuple[str, ...]:
        return tuple(text for text in self.cidr if parse_cidr(text) is None)


NO_IDENTIFIERS = AgentIdentifiers()


def parse_identifiers(text: str, *, strict: bool = False) -> AgentIdentifiers:
    """Parses agent identifiers.

    Raises ValueError for an invalid URL query, for too many or too long identifiers, and, if strict, for an
    unknown key.
    """
    if not text:
        return NO_IDENTIFIERS
    values: dict[str, list[str]] = {}
    for key, value in _query_pairs(text):
        if key in KNOWN_KEYS:
            values.setdefault(key, []).append(value)
        elif strict:
            raise ValueError(f"agent address is invalid: unknown address type: {key}")
    return AgentIdentifiers(
        ipv4=tuple(values.get("ipv4", ())),
        ipv6=tuple(values.get("ipv6", ())),
        host=tuple(values.get("host", ())),
        cidr=tuple(values.get("cidr", ())),
        default_route=values.get("default-route", [""])[0] in _TRUE,
    )


def _query_pairs(text: str) -> list[tuple[str, str]]:
    parts = text.split("&", IDENTIFIERS_MAX)
    if len(parts) > IDENTIFIERS_MAX:
        raise ValueError(f"agent identifiers: more than {IDENTIFIERS_MAX}")
    if max(map(len, parts)) > IDENTIFIER_CHARS_MAX:
        raise ValueError(f"agent identifiers: one has more than {IDENTIFIER_CHARS_MAX} characters")
    pairs = []
    for part in parts:
        if ";" in part:
            raise ValueError("agent identifiers: invalid URL query: invalid semicolon separator in query")
        if part:
            key, _, value = part.partition("=")
            pairs.append((_unquote(key), _unquote(value)))
    return pairs


def _unquote(text: str) -> str:
    bad = _BAD_ESCAPE.search(text)
    if bad is not None:
        raise ValueError(f'agent identifiers: invalid URL query: invalid URL escape "{bad[0]}"')
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "replace")
