"""The cores' own limits, made small: what takes megabytes in production takes kilobytes here.

Nothing else about the cores is changed. HTTP/2 windows stay as large as the protocol's default,
because a peer may use that much before it has read our settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bootbridge.bounds import BOUNDS
from tests.support.sim_environment import READ_BYTES
from tests.support.sim_network import STREAMS_MAX

STREAM_WINDOW = 65536
ADVERSARIES_MAX = 3


@dataclass(frozen=True, slots=True)
class SmallLimits:
    send_queue_high: int = 6 * 1024
    send_queue_low: int = 2 * 1024
    control_packets: int = 300
    credit: int = 8 * 1024
    overdraft: int = 3 * READ_BYTES  # a packet is one read, or all that came before the answer
    guard_bound: int = 8 * 1024
    guard_max: int = 96 * 1024
    guard_trickle: int = 256
    http2_output: int = 8 * 1024
    http2_backlog: int = 8 * 1024
    http2_gather: int = 512
    early: int = 2 * 1024

    # What one connection may make a process hold, in each direction (promise 4).

    def send_queue_max(self, read_max: int, *, grpc_source: bool) -> int:
        """A paused socket brings no more; a paused gRPC frontend may still use up its window."""
        return self.send_queue_high + self.early + 2 * read_max + (STREAM_WINDOW if grpc_source else 0)

    def credited_max(self, read_max: int) -> int:
        """Of an honest peer: the credit, and the packet that used up the last of it."""
        return self.credit + self.early + 2 * read_max

    @property
    def receiver_max(self) -> int:
        """Of any peer."""
        return self.credit + self.overdraft + READ_BYTES

    @property
    def guarded_max(self) -> int:
        return self.guard_max + 2 * READ_BYTES

    def control_max(self, read_max: int) -> int:
        """A flood ends its stream, but only when the turn is over that brought it. One turn may add a
        reply to every packet of one read (none takes less than 20 bytes of it), or one packet for
        every caller's stream: a lost caller closes its dials and connections, a lost agent's dials move."""
        return self.control_packets + read_max // 20 + (ADVERSARIES_MAX + 1) * STREAMS_MAX

    @property
    def http2_output_max(self) -> int:
        return self.http2_output + self.http2_backlog + STREAM_WINDOW + 4 * READ_BYTES


@contextmanager
def small_limits(limits: SmallLimits) -> Iterator[None]:
    small = {
        "send_queue_high": limits.send_queue_high,
        "send_queue_low": limits.send_queue_low,
        "control_packets": limits.control_packets,
        "credit": limits.credit,
        "overdraft": limits.overdraft,
        "early": limits.early,
        "stalled": limits.guard_bound,
        "stalled_max": limits.guard_max,
        "trickle": limits.guard_trickle,
        "stream_window": STREAM_WINDOW,
        "http2_output": limits.http2_output,
        "http2_backlog": limits.http2_backlog,
        "http2_gather": limits.http2_gather,
    }
    before = {name: getattr(BOUNDS, name) for name in small}
    try:
        for name, value in small.items():
            setattr(BOUNDS, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(BOUNDS, name, value)
