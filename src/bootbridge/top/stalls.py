"""Completes a sample with stalled connections: data waits, and none was passed on since the sample before.

The program itself counts a connection as stalled after 5 s, and only on the side that has the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from bootbridge.common.terminal.figures import counted
from bootbridge.top.snapshot import ConnectionRow, PeerRow, RowRates, Snapshot


def with_stalls(sample: Snapshot, rates_of: Callable[[ConnectionRow], RowRates]) -> Snapshot:
    waiting = Counter(row.peer for row in sample.connections if _is_stalled(row, rates_of(row)))
    peers = tuple(_with_at_least(peer, waiting[peer.id]) for peer in sample.peers)
    total = sum(peer.stalled_connections for peer in peers)
    warnings = (counted(total, "stalled connection"),) if total else ()
    return replace(sample, peers=peers, warnings=(*sample.warnings, *warnings))


def _is_stalled(row: ConnectionRow, rates: RowRates) -> bool:
    return row.waiting_for.endswith("to read") and (rates.up if row.queued_up else rates.down) == 0.0


def _with_at_least(peer: PeerRow, count: int) -> PeerRow:
    return peer if peer.stalled_connections >= count else replace(peer, stalled_connections=count)
