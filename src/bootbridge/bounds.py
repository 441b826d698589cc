"""Every bound on the memory that one tunnelled connection, HTTP/2 connection or peer can make a process hold.

An object instead of constants: the simulation makes the bounds small, and mypyc compiles constants in.
"""

from __future__ import annotations

from typing import Final

_KIB: Final = 1024
_MIB: Final = 1024 * 1024


class Bounds:
    def __init__(self) -> None:
        # A send queue above the first pauses its source, and resumes it below the second.
        self.send_queue_high = 256 * _KIB
        self.send_queue_low = 64 * _KIB
        # Control packets that may wait for a peer that does not read: a few for each of ten thousand
        # connections. More is a flood that the peer provokes: its stream is reset.
        self.control_packets = 1 << 16
        # Two reads of a socket: one in flight while the other is being written. With 1 MiB eight parallel
        # downloads were a quarter slower, because less of it fits the caches; with 384 KiB one upload was
        # an eighth slower. A stalled reader can make us hold this much.
        self.credit = 512 * _KIB
        # Credit is spent in whole packets, so the last one may exceed it by its size: one gRPC message.
        self.overdraft = 4 * _MIB
        # Bytes that a caller may send before the 200; more wait in its socket.
        self.early = 64 * _KIB

        # The payload of one DATA packet to an agent that knows no credit. A Go agent queues 150 packets of
        # each connection, of any size; the Go server sends at most this much in one.
        self.go_agent_packet = 32 * _KIB
        # The same for a gRPC caller, whose packets the Go server forwards in any size: with 32 KiB, large
        # writes cost 3 % more CPU than with the Go server, with this 7 % to 18 % less.
        self.go_agent_grpc_packet = 64 * _KIB

        # With a peer that knows no credit: above the first a connection is watched, above the second closed.
        self.stalled = 4 * _MIB
        self.stalled_max = 32 * _MIB
        # 800 KiB/s (one in 10 ms): enough for the small requests of other connections, and so little that a
        # stalled connection reaches its time limit before its size limit.
        self.trickle = 8 * _KIB

        # Bytes that the peer may send on one stream before we have read them.
        self.stream_window = _MIB
        # Output of an HTTP/2 connection that was not passed to its socket yet; streams wait above it.
        self.http2_output = 512 * _KIB
        # Tunnelled connections stop writing to an HTTP/2 connection while this much waits for its socket.
        self.http2_backlog = 256 * _KIB
        # Output below this is collected from all connections that are ready at the same time.
        self.http2_gather = 16 * _KIB


BOUNDS: Final = Bounds()
