"""The proxy-server process.

``options``     flags as one validated value
``main``        listeners, core and ports; start and graceful shutdown
``kubernetes``  token reviews and the server's lease
"""
