"""Control planes join one at a time, independent of their speed and of the join services' clocks.

Two instances with the real flows, two join services over one API server; time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bootbridge.common.failures import Transient
from bootbridge.join_api.instance import Instance
from bootbridge.join_api.messages import Ticket, TicketRequest
from bootbridge.join_service.control_plane_lease import CONTROL_PLANE_LABEL
from bootbridge.node.join.endpoints import Address
from bootbridge.node.stages import ProgressCallback
from bootbridge.node.supervisor import FATAL, FINISHED
from bootbridge.runtime.concurrency import Turn
from bootbridge.runtime.grpc import RpcError
from tests.join_service import environment as join_service_environment
from tests.join_service.environment import CONTROL, CONTROL_2, NOW, caller, ticket_request
from tests.support.deterministic_loop import run
from tests.support.node_environment import Environment, exit_code, quiet

RESET_SECONDS = 100.0


class Cluster:
    """The clocks of the join services differ by an hour."""

    def __init__(self, folder: Path, join_seconds: float) -> None:
        self.services = join_service_environment.Environment(folder)
        self.by_address = {
            ("10.0.0.1", 1): self.services.service,
            ("10.0.0.2", 1): self.services.another_service(ahead=3600.0),
        }
        self.join_seconds = join_seconds
        self.inside: set[str] = set()
        self.most = 0

    @contextmanager
    def changing_etcd(self, name: str) -> Iterator[None]:
        self.inside.add(name)
        self.most = max(self.most, len(self.inside))
        try:
            yield
        finally:
            self.inside.discard(name)

    def instance(self, instance: Instance, seed: int) -> Environment:
        """Its kubeadm takes a while for join and reset."""
        cluster = self

        class Slow(Environment):
            def assemble(self) -> Any:
                supervisor = super().assemble()
                self.service.request_ticket = self.ticket_from  # type: ignore[method-assign]
                join, reset = self.machine.join, self.machine.reset

                async def slow_join(ticket: Ticket, progress: ProgressCallback) -> None:
                    with cluster.changing_etcd(instance.name):
                        await asyncio.sleep(cluster.join_seconds)
                        await join(ticket, progress)
                    cluster.arrived(instance.name)

                async def slow_reset(cri_socket: str, progress: ProgressCallback) -> None:
                    with cluster.changing_etcd(instance.name):
                        await asyncio.sleep(RESET_SECONDS)
                        await reset(cri_socket, progress)

                self.machine.join = slow_join  # type: ignore[method-assign]
                self.machine.reset = slow_reset  # type: ignore[method-assign]
                return supervisor

            async def ticket_from(self, address: Address, request: TicketRequest, turn: Turn) -> Ticket:
                await turn()
                cluster.services.now = NOW + asyncio.get_running_loop().time()
                try:
                    return await cluster.services.ticket(
                        caller(instance), ticket_request(instance), cluster.by_address[address]
                    )
                except RpcError as failure:
                    raise Transient(failure.message) from failure

        return Slow(seed, instance=instance, secret_hash="", addresses=tuple(self.by_address), slow=1.0)

    def arrived(self, name: str) -> None:
        metadata = {"name": name, "uid": f"uid of {name}", "labels": {CONTROL_PLANE_LABEL: ""}}
        self.services.api.put(f"/api/v1/nodes/{name}", {"metadata": metadata})

    def both_join(self, seed: int) -> list[int]:
        async def both() -> list[int]:
            instances = [self.instance(each, seed) for each in (CONTROL, CONTROL_2)]
            return list(await asyncio.gather(*map(exit_code, instances)))

        return run(both(), seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_join_that_exceeds_its_turn_is_undone_before_the_next_one_starts(tmp_path: Path, seed: int) -> None:
    cluster = Cluster(tmp_path, join_seconds=700.0)
    with quiet():
        codes = cluster.both_join(seed)
    assert cluster.most == 1
    assert codes == [FATAL, FATAL]


@pytest.mark.parametrize("seed", range(5))
def test_two_control_planes_join_one_after_the_other(tmp_path: Path, seed: int) -> None:
    cluster = Cluster(tmp_path, join_seconds=300.0)
    with quiet():
        codes = cluster.both_join(seed)
    assert cluster.most == 1
    assert codes == [FINISHED, FINISHED]
