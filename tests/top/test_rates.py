"""Rates are differences of two samples."""

from __future__ import annotations

from bootbridge.top.rates import History
from tests.top.documents import connection, history, server_document, snapshot


def test_rates_are_per_second() -> None:
    first = server_document()
    second = server_document(
        bytes={"toAgent": 3000, "toFrontend": 12000},
        dials={"succeeded": 20, "failed": {"error_response": 4}},
        uptimeSeconds=102.0,
    )
    rates = history(first, second, seconds=2.0).rates
    assert (rates.up, rates.down, rates.dials, rates.failures) == (1000.0, 5000.0, 6.0, 1.0)


def test_one_sample_has_no_rates() -> None:
    found = history(server_document())
    assert (found.rates.up, found.of(snapshot(server_document()).peers[0]).up) == (None, None)


def test_rows_are_compared_with_the_same_row() -> None:
    """Order and number of rows change between samples."""
    first = server_document(connections=2)
    second = server_document(connections=0) | {
        "connections": [connection(3), connection(2, bytesDown=14_000)],
        "connectionsTotal": 2,
    }
    found = history(first, second)
    assert found.current is not None
    new, known = found.current.connections
    assert (found.of(new).down, found.of(known).down) == (None, 4000.0)


def test_a_connection_that_was_opened_between_the_samples_has_a_rate() -> None:
    second = server_document(connections=0) | {"connections": [connection(9, ageSeconds=0.5)]}
    found = history(server_document(connections=2), second)
    assert found.current is not None
    assert found.of(found.current.connections[0]).down == 45_000.0


def test_a_restarted_program_has_no_negative_rates() -> None:
    found = history(
        server_document(), server_document(uptimeSeconds=0.5, bytes={"toAgent": 0, "toFrontend": 0})
    )
    assert found.rates.up is None
    restarted_within_the_slack = history(
        server_document(uptimeSeconds=0.5), server_document(uptimeSeconds=0.2, bytes={"toAgent": 1})
    )
    assert restarted_within_the_slack.rates.up is None


def test_another_server_at_the_same_address_has_no_rates() -> None:
    found = history(server_document(), server_document(serverID="server-2", bytes={"toAgent": 10**9}))
    assert found.rates.up is None


def test_a_sample_that_a_key_caused_does_not_make_rates_jump() -> None:
    """It is compared with one that is older than half an interval."""
    found = History(seconds_min=0.5)
    for taken, sent in ((0.0, 0), (1.0, 1000), (1.01, 2000)):
        found.add(snapshot(server_document(bytes={"toAgent": sent, "toFrontend": 0}), taken=taken))
    assert found.rates.up == 2000 / 1.01
    assert len(found.traffic) == 1  # the graph has equal intervals
