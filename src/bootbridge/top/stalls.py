"""Completes a sample with its stalled connections, which the program itself counts only after 5 s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from bootbridge.common.stalled_connection import is_stalled
from bootbridge.common.terminal.figures import counted
from bootbridge.top.snapshot import ConnectionRow, PeerRow, RowRates, Snapshot


def with_stalls(sample: Snapshot, rates_of: Callable[[ConnectionRow], RowRates]) -> Snapshot:
    waiting = Counter(row.peer for row in sample.connections if _is_stalled(row, rates_of(row)))
    peers = tuple(_with_at_least(peer, waiting[peer.id]) for peer in sample.peers)
    total = sum(peer.stalled_connections for peer in peers)
    warnings = (counted(total, "stalled connection"),) if total else ()
    return replace(sample, peers=peers, warnings=(*sample.warnings, *warnings))


def _is_stalled(row: ConnectionRow, rates: RowRates) -> bool:
    return is_stalled(row.waiting_for, row.queued_up, rates.up, rates.down)


def _with_at_least(peer: PeerRow, count: int) -> PeerRow:
    return peer if peer.stalled_connections >= count else replace(peer, stalled_connections=count)
