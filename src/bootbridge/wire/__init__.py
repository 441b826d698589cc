"""Parsing and encoding of everything on the wire. No I/O, clock, randomness or logging.

In the order in which received bytes meet them:

``http2_connection``  one HTTP/2 connection, client or server.
``frame_buffer``      a frame or message that arrives in pieces.
``frames``            the nine-byte frame header, frame types, error codes, settings.
``hpack_headers``     HPACK (by the ``hpack`` library), its limits, and the rules for headers.
``http2_stream``      one HTTP/2 stream: flow-control windows, and at most one unsent message.
``grpc_messages``     length-prefixed messages, metadata, status and trailers.
``packets``           Konnectivity's packets, with a fast path for DATA.
``connect_request``   the HTTP CONNECT head and the replies to it.
``addresses``         host:port, IP addresses and CIDRs as text.
``proto``             protobuf messages of our own services as dataclasses.

Server and agent run it; so do the join service and its clients. A malformed input raises
``bootbridge.errors.PeerError`` or is answered with a protocol error. It never raises anything
else, and it never makes memory grow without bound.
"""
