"""The operations that a flow performs on this machine, as a protocol; `kubeadm.machine` implements it.

Errors: a flow retries `Transient`, reports `Fatal` to the operator, and counts any other `BootbridgeError` or
`OSError` as one failed attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from bootbridge.common.failures import Transient
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.components import Component
from bootbridge.join_api.instance import Instance
from bootbridge.join_api.messages import Ticket
from bootbridge.node.stages import ProgressCallback


@dataclass(frozen=True)
class JoinServiceSetup:
    """Holds what `Machine.set_up_join_service` needs to let other instances join the new cluster."""

    spec: ClusterSpec
    instance: Instance
    kubeconfig: bytes = field(repr=False)
    measurement_secret: bytes = field(repr=False)
    measurement_salt: bytes
    join_policy: bytes


class NodeStillReady(Transient):
    """`join` is refused: a Node of this name is Ready.

    After a crash in the middle of a join this is the instance's own Node, until Kubernetes notices that its
    kubelet has stopped.
    """


class Machine(Protocol):
    """Every operation may be repeated; `reset` returns the machine to the state before kubeadm ran."""

    async def install_components(self, components: tuple[Component, ...], progress: ProgressCallback) -> None:
        """Downloads, verifies and installs missing components; runs first, since kubeadm may be one."""
        ...

    async def has_kubeadm_traces(self) -> bool:
        """Returns whether kubeadm has run here before, completely or in part."""
        ...

    async def reset(self, cri_socket: str, progress: ProgressCallback) -> None: ...

    async def reset_best_effort(self, cri_socket: str, progress: ProgressCallback) -> None:
        """Resets without raising: removes as many keys as possible when the flow has failed for good."""
        ...

    async def init(
        self, spec: ClusterSpec, instance: Instance, certificate_days: int, progress: ProgressCallback
    ) -> bytes:
        """Runs kubeadm init, waits until the API server is ready, and returns the admin kubeconfig."""
        ...

    async def set_up_join_service(self, setup: JoinServiceSetup, progress: ProgressCallback) -> None:
        """Deploys the join service and its secrets; idempotent."""
        ...

    async def write_ticket_files(self, ticket: Ticket, kubelet_key: bytes) -> None:
        """Writes the certificates of the ticket; must follow a reset, which deletes them."""
        ...

    async def join(self, ticket: Ticket, progress: ProgressCallback) -> None: ...

    async def is_kubelet_configured(self) -> bool:
        """Returns whether the kubelet's configuration and credentials exist."""
        ...

    async def start_kubelet(self) -> None: ...

    async def read_serving_certificate(self) -> bytes:
        """Returns the kubelet's serving certificate and key as PEM; empty if the node has none from us."""
        ...

    async def write_serving_certificate(self, certificate: bytes, kubelet_key: bytes) -> None: ...
