"""See it work on this machine: certificates, a server, two agents, a webhook, and calls through the tunnel.

A *site* says where everything stands (network namespaces, or loopback without root), a *place* is one
spot in it where programs run and sockets are opened, a *program* is a process with a log of its own,
and the *story* is the list of steps that `steps` shows as they happen.
"""
