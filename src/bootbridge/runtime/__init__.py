"""Event loop, sockets, TLS, logs and admin HTTP. Everything else is free of them, or uses this package.

``event_loop``       asyncio's loop, which waits in ``sockets``
``listeners``        accepts connections of frontends and agents (``accept_rate``)
``dialler``          dials endpoints (``endpoint_policy``, ``lookup``) and servers
``byte_stream``      a socket as a byte port; ``tls_stream`` adds TLS from ``tls_files``
``http2_transport``  an HTTP/2 connection on a byte stream, with its ``keepalive``
``pump``             a turn: one input to the cores, then all their output is written
``grpc``             gRPC calls for init and join, on asyncio streams
``admin_http``       serves ``admin_routes`` and ``profiling_routes``

Both proxies run the first six; the join service and `bootbridge node` run the others.
"""
