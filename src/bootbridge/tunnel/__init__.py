"""The protocol cores of server and agent, without I/O: events go in, calls on ports come out.

In the order in which a byte meets them on its path from a caller to a pod. The proxy server runs:

*Frontend*          a caller on the API server's side: an HTTP CONNECT socket or a gRPC Proxy stream.
*Dial*              a request to connect to host:port; pending until it is answered, and always answered.
*Agent registry*    the agents that are connected now; *backend selection* chooses one of them.
*Route*             an established connection, frontend ↔ endpoint.
*Send queue*        bytes of one connection that wait for their turn on a shared packet stream.
*Packet stream*     one gRPC stream of packets: control packets first, then the send queues in turn.

The proxy agent runs a packet stream too, and:

*Receiver*          passes bytes of one connection from a packet stream to a sink (in the server, too).
*Endpoint*          the TCP connection that the agent made.
*Server set*        the servers that the agent connects to.
*Call pauses*       when a draining agent may close a connection without cutting a call.

Everything outside is reached through ``ports``. Implementations of a port must not call back before
they return. Time comes from ``Timers``, randomness from a seeded ``random.Random``. So the simulator
drives the same objects as the event loop. States of opening and closing: ``ports.close_states``.
"""
