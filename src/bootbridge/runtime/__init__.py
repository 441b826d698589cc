"""The only home of the event loop, sockets and TLS.

``pump``         a turn: one input to the cores, then everything they want written is written.
``byte_stream``  a socket as a byte port, plain or TLS.
``http2_transport``  an HTTP/2 connection on a byte stream.
``listeners``    sockets that accept frontends and agents.
``dialler``      TCP connections to endpoints and servers.
"""
