"""What the node's flows need from the world: each a protocol, so that tests can be that world.

The register is `trust/measurement.Register`. Time is the event loop's (`asyncio.sleep`, `loop.time`); only
what is compared with dates asks for `now`, and what outlives the process for this boot's `Clock`.
What these raise: `Transient` (and `Refused`) is tried again, `Fatal` is told to the operator, and any other
`BootbridgeError` or `OSError` counts as one failed attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.components import Component
from bootbridge.join_api.instance import Instance
from bootbridge.join_api.kubelet_certificate_request import CertificateRequest
from bootbridge.join_api.messages import RejoinRequest, RejoinTicket, Ticket, TicketRequest
from bootbridge.node.init.messages import StageEvent
from bootbridge.runtime.concurrency import Turn
from bootbridge.runtime.grpc import Handler

# How long a flow waits for `Metadata`, whatever its own limits are.
METADATA_SECONDS_MAX: Final = 30.0

Address = tuple[str, int]
# Progress, as it happens: never blocks, never fails, may be called from within a flow's step only.
ProgressCallback = Callable[[StageEvent], None]
Now = Callable[[], datetime]
# Seconds of this boot, for what must end in time even if the process was started anew meanwhile.
Clock = Callable[[], float]


@dataclass(frozen=True)
class JoinServiceSetup:
    """What turns a bare API server into a cluster that others can join."""

    spec: ClusterSpec
    instance: Instance
    kubeconfig: bytes = field(repr=False)
    measurement_secret: bytes = field(repr=False)
    measurement_salt: bytes
    join_policy: bytes


class Machine(Protocol):
    """What is done to this machine. Every step may be repeated; `reset` leads back to a blank one."""

    async def install_components(self, components: tuple[Component, ...], progress: ProgressCallback) -> None:
        """Fetch, check and place what is missing; first of all steps, since it may bring kubeadm itself."""
        ...

    async def has_kubeadm_traces(self) -> bool:
        """Whether kubeadm has been at work here: half a node, or a whole one that nobody remembers."""
        ...

    async def reset(self, cri_socket: str, progress: ProgressCallback) -> None: ...

    async def reset_best_effort(self, cri_socket: str, progress: ProgressCallback) -> None:
        """A reset that never fails: of whoever will not try again no key stays behind, as far as it goes."""
        ...

    async def init(
        self, spec: ClusterSpec, instance: Instance, certificate_days: int, progress: ProgressCallback
    ) -> bytes:
        """kubeadm init, until the API server is ready; gives the administrator's kubeconfig."""
        ...

    async def set_up_join_service(self, setup: JoinServiceSetup, progress: ProgressCallback) -> None:
        """Deploy the join service and its secrets; applied again it changes nothing."""
        ...

    async def write_ticket_files(self, ticket: Ticket, kubelet_key: bytes) -> None:
        """Write what the ticket brings; after a reset, which deletes it."""
        ...

    async def join(self, ticket: Ticket, progress: ProgressCallback) -> None: ...

    async def is_kubelet_configured(self) -> bool:
        """Whether a kubelet that is started now finds its configuration and its credentials."""
        ...

    async def start_kubelet(self) -> None: ...

    async def read_serving_certificate(self) -> bytes:
        """The kubelet's certificate and its key, PEM; empty where there is none of ours."""
        ...

    async def write_serving_certificate(self, certificate: bytes, kubelet_key: bytes) -> None: ...


class JoinService(Protocol):
    """The cluster's side of a join, at one address; Refused carries its reason.

    A channel to it is opened at once; the request goes out when its turn has come.
    """

    async def ticket(self, address: Address, request: TicketRequest, turn: Turn) -> Ticket: ...
    async def rejoin_ticket(self, address: Address, request: RejoinRequest, turn: Turn) -> RejoinTicket: ...


# Where join services may be, the most promising first; an empty list is an answer, too.
Endpoints = Callable[[], Awaitable[Sequence[Address]]]


NewRequest = Callable[[str], CertificateRequest]  # given the node's name
SecretMatches = Callable[[bytes, str], bool]  # (secret, hash), in constant time
CheckPolicy = Callable[[bytes], object]  # raises OperatorError for a join policy that cannot be one


class InitListener(Protocol):
    @property
    def connections(self) -> int:
        """Those that are about to prove something, and those in use."""
        ...

    async def stop(self) -> None:
        """No new calls; those that run may end, within a limit."""
        ...


# To be called when a caller has shown the init secret: it may stay, and watch for as long as it likes.
Admitted = Callable[[], None]
# The handlers of one connection, by path; given where it comes from: whoever guesses there waits there.
HandlersFor = Callable[[str, Admitted], Mapping[str, Handler]]
# Opens the port that users call, behind attested TLS. Strangers are not let stay there.
OpenInitListener = Callable[[HandlersFor], Awaitable[InitListener]]
