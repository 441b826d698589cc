"""A client of the server's frontend: connections through a tunnel, as the kube-apiserver opens them.

frontend       where a frontend is: a unix socket, or TCP with a client certificate
call           one dial and its connection without I/O, by HTTP CONNECT or gRPC
tunnel_stream  the same on asyncio's streams: open, read, write, half-close
relay          copies bytes between a local connection and one through the tunnel
port_forward   listens on local ports, and relays each connection
dial_problem   what the error text of a server or agent means
"""
