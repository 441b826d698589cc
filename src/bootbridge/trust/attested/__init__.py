"""Attested TLS: both ends prove what they are to one very session, before a byte of use is exchanged.

TLS 1.3 with a server key that lives as long as its connection keeps others out; who is at the other end is
told by *evidence* right after the handshake. `binding` says what evidence is about, `exchange` in which order
it is shown and judged, `channel` does both over a socket.
"""
