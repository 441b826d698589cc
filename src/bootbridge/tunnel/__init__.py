"""The protocol's brains, still without I/O: what happened goes in, what to do comes out.

The nouns, in the order a byte meets them on its way from a caller to a pod:

*Frontend*      a caller on the apiserver's side: an HTTP CONNECT socket or a gRPC Proxy stream.
*Dial*          a wish to reach host:port; pending until answered, and always answered.
*AgentRegistry*        the agents that are connected now; *backend selection* picks one of them.
*Route*         an established connection, frontend ↔ endpoint, as the server sees it.
*SendQueue*        bytes of one connection waiting to go out on a shared packet stream.
*Packet stream* one gRPC stream of packets: control first, then the send queues in turn.
*Receiver*         bytes of one connection that came in on a packet stream, going to a sink.
*Endpoint*      the TCP connection that the agent made.

Everything outside is reached through the protocols in ``ports``. Their implementations
must not call back before they return: what they have to tell comes as a new input. Time
comes from ``Timers``, chance from a seeded ``random.Random``; so the simulator drives the
very same objects as the event loop does.
"""
