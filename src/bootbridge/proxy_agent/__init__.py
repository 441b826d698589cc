"""The proxy-agent process.

``options``            flags as one validated value
``main``               core and ports; start and drain
``server_sync``        keeps a ``server_connection`` to every server
``kubernetes``         counts the servers by their leases
"""
