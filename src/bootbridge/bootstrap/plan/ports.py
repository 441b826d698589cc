"""Decides the TCP ports of an installed tunnel.

The programs' own defaults are upstream's; they are in `proxy_server/options.py` and `proxy_agent/options.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

# Upstream's proxy-server rejects ports outside this range.
PORT_MIN, PORT_MAX = 1024, 49151


@dataclass(frozen=True)
class Ports:
    """Holds the ports of the server, on the bootstrap node, and of each agent, on its host or pod."""

    agent: int = 8091  # agents dial it; the only port that other machines reach
    server_health: int = 2041
    server_admin: int = 8095
    agent_health: int = 2042  # differs from the server's: on kubeadm an agent may share its host
    agent_admin: int = 8094
