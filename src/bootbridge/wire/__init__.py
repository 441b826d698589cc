"""Bytes ⇄ meaning. Nothing in here does I/O, knows the time, or logs.

In the order a byte meets them:

``connection``             one HTTP/2 connection, either role.
``stream``           one stream of it: windows, and at most one unsent message.
``frames``           the nine-byte frame header, frame types, error codes, settings.
``header_blocks``    HPACK (by the ``hpack`` library), its limits, and the rules for headers.
``grpc_messages``    length-prefixed messages, metadata, status and trailers.
``packets``          Konnectivity's packets, with a fast path for DATA.
``connect_request``  the HTTP CONNECT head and the replies to it.

A malformed input raises ``bootbridge.errors.PeerError`` or is answered with the right
protocol error; it never raises anything else and never makes memory grow without bound.
"""
