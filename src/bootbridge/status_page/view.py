"""What a request asks to see: filter, order and page of each table. It is in the URL, so it can be shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote_plus

ROWS_PER_PAGE = 50
# How often the page updates itself, unless that would cost too much.
PERIOD_SECONDS = 1.0
# The drawing and the order of agents use this many agents: the most that one status document has.
AGENTS_MAX = 1000
FILTER_CHARS_MAX = 256
OFFSET_MAX = 10_000_000

AGENT_ORDERS = ("id", "connected", "connections", "failures", "rate", "queue")
CONNECTION_ORDERS = ("queued", "age", "bytes")
REFRESH_SECONDS = (2, 5, 10, 30)


@dataclass(frozen=True)
class View:
    """The decoded query of the page. Invalid values are replaced by the defaults."""

    filter: str = ""
    sort: str = CONNECTION_ORDERS[0]
    agents_sort: str = AGENT_ORDERS[0]
    agents_offset: int = 0
    connections_offset: int = 0
    all_dials: bool = False
    refresh: int = 0

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> View:
        """Takes decoded values."""
        refresh = _integer(query.get("refresh", ""))
        return cls(
            filter=query.get("filter", "").strip()[:FILTER_CHARS_MAX],
            sort=_one_of(CONNECTION_ORDERS, query.get("sort", "")),
            agents_sort=_one_of(AGENT_ORDERS, query.get("agents_sort", "")),
            agents_offset=_integer(query.get("agents_offset", "")),
            connections_offset=_integer(query.get("connections_offset", "")),
            all_dials=query.get("dials", "") == "all",
            refresh=refresh if refresh in REFRESH_SECONDS else 0,
        )

    def link(self, anchor: str = "", **changes: Any) -> str:
        """Returns a relative URL of this view with changes; relative, because a proxy may add a prefix."""
        parameters = replace(self, **changes).parameters()
        query = "&".join(f"{key}={quote_plus(value)}" for key, value in parameters.items())
        return f"?{query}" + (f"#{anchor}" if anchor else "")

    def parameters(self) -> dict[str, str]:
        """Returns what differs from the defaults, as a query."""
        default = View()
        found = {}
        for key in ("filter", "sort", "agents_sort", "agents_offset", "connections_offset", "refresh"):
            if getattr(self, key) != getattr(default, key):
                found[key] = str(getattr(self, key))
        return found | ({"dials": "all"} if self.all_dials else {})

    def status_query(self) -> dict[str, str]:
        """Returns the query of the status document that this view needs."""
        return {
            "agents_offset": str(self.agents_offset // AGENTS_MAX * AGENTS_MAX),
            "agents_limit": str(AGENTS_MAX),
            "connections_offset": str(self.connections_offset),
            "connections_limit": str(ROWS_PER_PAGE),
            "filter": quote_plus(self.filter),
            "sort": self.sort,
        }


def _one_of(choices: tuple[str, ...], value: str) -> str:
    return value if value in choices else choices[0]


def _integer(text: str) -> int:
    return min(int(text), OFFSET_MAX) if text.isascii() and text.isdigit() and len(text) < 12 else 0
