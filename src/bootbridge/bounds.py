"""Every bound on the memory that one tunnelled connection, HTTP/2 connection or peer can make a process hold.

An object and not constants, because the simulation makes the bounds small, and a constant is built
into code that mypyc has compiled.
"""

from __future__ import annotations

from typing import Final

_KIB: Final = 1024
_MIB: Final = 1024 * 1024


class Bounds:
    def __init__(self) -> None:
        # An send queue that holds this much asks its source to wait, and lets it go on below the lower mark.
        self.send_queue_high = 256 * _KIB
        self.send_queue_low = 64 * _KIB
        # Answers, closes and credit that may wait for a peer that does not read: a few for each of ten
        # thousand connections. More is a flood that the peer provokes, and the end of its stream.
        self.control_packets = 1 << 16
        # Two reads of a socket: one on its way while the other is being written. With 1 MiB eight parallel
        # downloads were a quarter slower, because less of it stays in the caches; with 384 KiB one upload
        # was an eighth slower. It is also what a stalled reader makes us hold.
        self.credit = 512 * _KIB
        # Credit is spent in whole packets, so the last one may overdraw it by its own size: one gRPC message.
        self.overdraft = 4 * _MIB
        # What a caller may send ahead of the 200; more waits in its socket.
        self.early = 64 * _KIB

        # Towards a peer that knows no credit: behind the first a receiver is watched, at the second closed.
        self.stalled = 4 * _MIB
        self.stalled_max = 32 * _MIB
        # 800 KiB/s (one in 10 ms): enough for the small requests of others, and little enough that a
        # receiver that stands still reaches its time limit before its size limit.
        self.trickle = 8 * _KIB

        # The peer may send this much on one stream before we have read it.
        self.stream_window = _MIB
        # Output of an HTTP/2 connection that has not been handed to its socket; streams wait above it.
        self.http2_output = 512 * _KIB
        # Tunnelled connections stop writing to an HTTP/2 connection while this much waits for its socket.
        self.http2_backlog = 256 * _KIB
        # Output below this is gathered over all connections that are ready in the same moment.
        self.http2_gather = 16 * _KIB


BOUNDS: Final = Bounds()
