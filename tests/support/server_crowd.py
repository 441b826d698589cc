"""A server's core with very many agents and connections, in memory and within seconds."""

from __future__ import annotations

from bootbridge.wire import packets as p
from tests.support.sim_script import ServerHarness


class CrowdedServer(ServerHarness):
    """Scripted agents with the same number of established connections each.

    A script step normally delivers everything in flight; here that happens once for all agents, and once for
    all dials, because looking at every connection after each step would take minutes.
    """

    def __init__(self, agents: int, connections: int) -> None:
        super().__init__()
        self._delivers = False
        peers = [
            self.agent(
                f"agent-{number}",
                identifiers=f"host=node-{number}&cidr=10.{number // 256}.{number % 256}.0/24",
            )
            for number in range(agents)
        ]
        self._deliver()
        for number in range(connections):
            self.connect_caller().connect(f"10.128.{number // 250}.{number % 250}:8443")
        self._deliver()
        for peer in peers:
            dials, peer.received = peer.received, []
            for connect_id, dial in enumerate(dials, 1):
                assert isinstance(dial, p.DialRequest)
                peer.send(p.DialResponse("", connect_id, dial.random))
        self._deliver()
        assert (len(self.core.agent_registry), self.core.route_count) == (agents, connections)

    def settle(self) -> None:
        if self._delivers:
            super().settle()

    def _deliver(self) -> None:
        self._delivers = True
        self.settle()
        self._delivers = False
