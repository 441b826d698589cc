"""The query of `/status`, and how its document is written."""

from __future__ import annotations

import json

import pytest

from bootbridge.runtime.sliced_work import CHUNK_ITEMS, run_at_once
from bootbridge.runtime.status_query import ROWS_MAX, StatusQuery, encode, first_rows, parse_query, timestamp


def test_without_a_query_the_first_rows_are_returned() -> None:
    assert parse_query({}) == StatusQuery(0, 100, 0, 100, "", "age")
    assert parse_query({"unknown": "1", "agents_limit": ""}) == StatusQuery()


def test_a_query_selects_rows() -> None:
    """Texts are decoded, and a page has a maximum."""
    query = parse_query(
        {
            "agents_offset": "10",
            "agents_limit": "99999",
            "connections_offset": "20",
            "connections_limit": "0",
            "filter": "a%26b+c",
            "sort": "queued",
        }
    )
    assert query == StatusQuery(10, ROWS_MAX, 20, 0, "a&b c", "queued")


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"agents_offset": "-1"}, "agents_offset: invalid number '-1' (use 0 to 999999999)"),
        ({"connections_limit": "1e3"}, "connections_limit: invalid number '1e3' (use 0 to 999999999)"),
        ({"agents_limit": "1" * 5000}, f"agents_limit: invalid number '{'1' * 40}' (use 0 to 999999999)"),
        ({"sort": "name"}, "sort: unknown order 'name' (use age, bytes, queued)"),
        ({"filter": "x" * 513}, "filter: more than 512 characters"),
    ],
)
def test_an_invalid_query_is_refused(query: dict[str, str], error: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_query(query)
    assert str(raised.value) == error


@pytest.mark.parametrize("count", [0, 10, CHUNK_ITEMS * 2 + 1])
@pytest.mark.parametrize(("offset", "limit"), [(0, 0), (0, 7), (8, 5), (CHUNK_ITEMS - 1, 3), (10**6, 5)])
def test_a_page_is_a_part_of_the_sorted_rows(count: int, offset: int, limit: int) -> None:
    """Whatever the number of chunks; rows with the same key stay in their order."""
    rows = [(number * 7919 % 101, number) for number in range(count)]
    found = run_at_once(first_rows(rows, lambda row: row[0], offset, limit))
    assert found == sorted(rows)[offset : offset + limit]


def test_times_are_utc_with_milliseconds() -> None:
    assert timestamp(1_800_000_000.0019) == "2027-01-15T08:00:00.001Z"
    assert timestamp(float("inf")) is None


def test_a_document_is_json_whatever_peers_put_into_it() -> None:
    """Rows are lines of their own; no text of a peer can end a line or a string."""
    document = {
        "id": '"\n\x1b[2J\u2028\udc80',
        "rows": [{"a": 1}, {"b": "</script>"}],
        "none": [],
        "list": ["x"],
    }
    text = run_at_once(encode(document))
    assert json.loads(text) == document
    assert text.isascii()
    assert text.splitlines() == [
        "{",
        r' "id": "\"\n\u001b[2J\u2028\udc80",',
        ' "rows": [',
        '  {"a": 1},',
        '  {"b": "</script>"}],',
        ' "none": [],',
        ' "list": ["x"]',
        "}",
    ]
