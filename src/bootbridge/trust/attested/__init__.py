"""Attested TLS: both ends prove what they are, bound to one TLS session, before any payload is exchanged.

TLS 1.3 with a server key per connection gives confidentiality; the evidence that is exchanged right after
the handshake gives identity. Used by the join service, by `bootbridge node run` and by `bootbridge init`.

listening_sockets, admission_queue   accepted connections, and which of them is served next
session_key                          the TLS contexts, and the server's key for one connection
channel_binding                      the 32 bytes that evidence is about
exchange                             the messages with evidence, without I/O
handshake                            the exchange over a socket, with one deadline
channel                              `connect`, `AttestedListener`, and the `AttestedChannel` that both yield
"""
