"""The interfaces between the protocol cores and the event loop.

Byte ports, dialler, event log, timers.

The cores in `tunnel` call these; `runtime` implements them over sockets, `tests/sim` over a simulated
network.
"""
