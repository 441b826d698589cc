"""The two calls of the join service: a ticket for a new instance, and one for a rebooted node.

Every check comes before anything is created: claims, CSR, name binding, control-plane lease; the bootstrap
token is created last. Requests do not wait for one another, up to TICKETS_IN_PROGRESS_MAX.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.join_api.errors import JoinRefused, RetryLater
from bootbridge.join_api.kubelet_certificate import KubeletCa, KubeletCsr
from bootbridge.join_api.messages import (
    ISSUE_REJOIN_TICKET,
    ISSUE_TICKET,
    RejoinRequest,
    RejoinTicket,
    Ticket,
    TicketRequest,
)
from bootbridge.join_api.node_addresses import node_addresses
from bootbridge.join_api.policy import ClusterFacts
from bootbridge.join_service import bootstrap_tokens
from bootbridge.join_service.active_policy import ActivePolicy
from bootbridge.join_service.audit import AuditLog, AuditOutcome
from bootbridge.join_service.authorization import AttestedCaller, Grant, authorize_rejoin, authorize_ticket
from bootbridge.join_service.control_plane_files import ControlPlaneFiles
from bootbridge.join_service.control_plane_lease import ControlPlaneLease
from bootbridge.join_service.measurement_secret import MeasurementSecret
from bootbridge.join_service.name_bindings import NameBindings
from bootbridge.join_service.ticket_limit import TicketLimit
from bootbridge.join_service.write_batcher import BATCH_MAX, WriteBatcher
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.runtime import logs
from bootbridge.runtime.grpc import Handler, RpcError, Send
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.proto import Message, MessageError

# One batch at the API server and one that fills. More would only queue there; further requests wait here,
# on their attested channels.
TICKETS_IN_PROGRESS_MAX: Final = 2 * BATCH_MAX

# An instance opens a channel to each address of the service that it knows, a few at a time.
CHANNELS_PER_KEY_MAX: Final = 8

# A control plane whose turn has expired undoes its join, which removes its new etcd member: the next one
# waits for that, too. The timeouts of kubeadm reset and of stopping the kubelet are below it.
UNDO_SECONDS: Final = 300

RequestT = TypeVar("RequestT", TicketRequest, RejoinRequest)


@dataclass
class _AuditEntry:
    """What is known so far about one call, for its audit line."""

    event: str
    name: str = ""
    role: str = ""
    token_id: str = ""

    def set_token_id(self, token_id: str) -> None:
        self.token_id = token_id


@dataclass
class JoinService:
    client: KubeClient
    namespace: str
    policy: Callable[[], ActivePolicy]
    measurement: MeasurementSecret
    files: ControlPlaneFiles
    audit: AuditLog
    clock: Callable[[], float]
    monotonic: Callable[[], float] = time.monotonic
    tickets_in_progress_max: int = TICKETS_IN_PROGRESS_MAX
    # Open channels, including those in the handshake and those with a request in progress.
    connections: Callable[[], int] = lambda: 0
    issued: int = 0
    refused: int = 0
    # What ends each open channel, by the caller's identity.
    _channels: dict[str, set[asyncio.Timeout]] = field(init=False, repr=False, default_factory=dict)
    _in_progress: asyncio.Semaphore = field(init=False, repr=False)
    _requests: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        self._in_progress = asyncio.Semaphore(self.tickets_in_progress_max)
        self._batcher = WriteBatcher(lambda: self.connections() - self._requests)
        self._bindings = NameBindings(self.client, self.namespace)
        self._tickets = TicketLimit(self.clock)
        self._rejoins = TicketLimit(self.clock)
        self._lease = ControlPlaneLease(self.client, self.namespace, self.clock, self.monotonic)

    @contextmanager
    def count_channel(self, caller: AttestedCaller, limit: asyncio.Timeout) -> Iterator[bool]:
        """Counts a channel while it is open; yields False if its key has CHANNELS_PER_KEY_MAX already.

        ``limit`` ends the channel.
        """
        key = caller.attested.identity
        if len(self._channels.get(key, ())) >= CHANNELS_PER_KEY_MAX:
            yield False
            return
        self._channels.setdefault(key, set()).add(limit)
        try:
            yield True
        finally:
            self._channels[key].discard(limit)
            if not self._channels[key]:
                del self._channels[key]

    def close_channels(self, identity: str) -> None:
        """Ends the open channels of an identity at once, with their requests in progress."""
        limits = [each for each in self._channels.get(identity, ()) if not each.expired()]
        for limit in limits:
            limit.reschedule(asyncio.get_running_loop().time())
        if limits:
            logs.event(
                "join-service", logs.WARNING, "channels closed", identity=identity, channels=len(limits)
            )

    def handlers(self, caller: AttestedCaller) -> dict[str, Handler]:
        """Returns the gRPC handlers of one attested channel."""
        return {
            ISSUE_TICKET: self._handler("ticket", caller, TicketRequest, self._issue_ticket),
            ISSUE_REJOIN_TICKET: self._handler(
                "rejoin ticket", caller, RejoinRequest, self._issue_rejoin_ticket
            ),
        }

    # --- tickets

    async def _issue_ticket(
        self, request: TicketRequest, caller: AttestedCaller, entry: _AuditEntry
    ) -> Ticket:
        active = self.policy()
        policy, cluster = active.policy, active.policy.cluster
        csr = KubeletCsr(request.certificate_request)
        inventory = await active.inventory.snapshot()
        grant = authorize_ticket(request, caller, inventory, policy)
        entry.role = grant.role
        self._tickets.check(grant.identity)
        ca = self.files.ca()
        certificate = self._sign(ca, csr, grant, policy.ticket.certificate_days)
        addresses = _node_addresses(grant, cluster)
        files = self.files.read_all() if grant.control_plane else ()
        await self._batcher.wait_for_batch()
        await self._bindings.bind(grant, _evidence_token(caller))
        turn = policy.ticket.control_plane_join_seconds if grant.control_plane else 0
        if turn:
            await self._lease.acquire(grant.name, turn + UNDO_SECONDS)
        with self._tickets.reserve(grant.identity, policy.ticket.token_seconds):
            token = await bootstrap_tokens.create(
                self.client, grant.name, self.clock(), policy.ticket.token_seconds, entry.set_token_id
            )
        return Ticket(
            node_name=grant.name,
            control_plane=grant.control_plane,
            kubernetes_version=cluster.kubernetes_version,
            api_server_endpoint=cluster.api_server_endpoint,
            token=token.text,
            token_seconds=policy.ticket.token_seconds,
            turn_seconds=turn,
            ca_certificate_hashes=ca.pins,
            kubelet_certificate=certificate,
            control_plane_files=files,
            measurement_secret=self.measurement.secret,
            measurement_salt=self.measurement.salt,
            components=cluster.components,
            addresses=addresses,
            provider_id=grant.instance.provider_id,
            cri_socket=cluster.cri_socket,
            ignore_preflight_errors=cluster.ignore_preflight_errors,
        )

    async def _issue_rejoin_ticket(
        self, request: RejoinRequest, caller: AttestedCaller, entry: _AuditEntry
    ) -> RejoinTicket:
        """For an existing node: the policy's roles and the control-plane lease do not apply."""
        active = self.policy()
        settings = active.policy.ticket
        csr = KubeletCsr(request.certificate_request)
        inventory = await active.inventory.snapshot()
        grant = authorize_rejoin(request, caller, inventory, active.policy, self.measurement.locked_value)
        entry.role = grant.role
        with self._rejoins.reserve(grant.identity, settings.token_seconds):
            certificate = self._sign(self.files.ca(), csr, grant, settings.certificate_days)
            await self._bindings.require_node(grant, _evidence_token(caller))
        return RejoinTicket(grant.name, certificate)

    def _sign(self, ca: KubeletCa, csr: KubeletCsr, grant: Grant, days: int) -> bytes:
        return ca.sign(
            csr, grant.name, grant.instance.addresses, now=self.clock(), validity=timedelta(days=days)
        )

    # --- responses

    def _handler(
        self,
        event: str,
        caller: AttestedCaller,
        kind: type[RequestT],
        issue: Callable[[RequestT, AttestedCaller, _AuditEntry], Awaitable[Message]],
    ) -> Handler:
        async def handle(body: bytes, send: Send) -> None:
            entry = _AuditEntry(event)
            self._requests += 1
            try:
                request = kind.decode(body)
                entry.name = request.node_name
                async with self._in_progress:
                    ticket = await issue(request, caller, entry)
            except BootbridgeError as error:
                raise self._rpc_error(error, caller, entry) from error
            except asyncio.CancelledError:
                self._record(AuditOutcome.FAILED, caller, entry, "the caller disconnected")
                raise
            finally:
                self._requests -= 1
            self.issued += 1
            self._record(AuditOutcome.ISSUED, caller, entry)
            await send(ticket.encode())

        return handle

    def _rpc_error(self, error: BootbridgeError, caller: AttestedCaller, entry: _AuditEntry) -> RpcError:
        """Writes the audit line; returns the caller's error, without the details of internal ones."""
        if isinstance(error, MessageError):
            error = JoinRefused(f"malformed request: {error}")
        if isinstance(error, JoinRefused):
            self.refused += 1
            self._record(AuditOutcome.REFUSED, caller, entry, str(error))
            return RpcError(grpc.PERMISSION_DENIED, str(error))
        if isinstance(error, RetryLater):
            self._record(AuditOutcome.NOT_YET, caller, entry, str(error))
            return RpcError(grpc.UNAVAILABLE, f"retry later: {error}")
        self._record(AuditOutcome.FAILED, caller, entry, str(error))
        logs.event("join-service", logs.ERROR, "issuing a ticket failed", node=entry.name, reason=error)
        if isinstance(error, KubeError | KubeUnreachable):
            return RpcError(
                grpc.UNAVAILABLE, "retry later: a request of the join service to its API server failed"
            )
        return RpcError(grpc.UNAVAILABLE, "retry later: internal error of the join service (see its log)")

    def _record(
        self, outcome: AuditOutcome, caller: AttestedCaller, entry: _AuditEntry, reason: str = ""
    ) -> None:
        self.audit.record(
            entry.event,
            outcome,
            caller,
            name=entry.name,
            role=entry.role,
            reason=reason,
            token_id=entry.token_id,
        )


def _evidence_token(caller: AttestedCaller) -> str:
    return caller.attested.facts.get("token", "")


def _node_addresses(grant: Grant, cluster: ClusterFacts) -> tuple[str, ...]:
    """Selects addresses as the init does for the first node."""
    try:
        return tuple(map(str, node_addresses(grant.instance.addresses, cluster.families)))
    except OperatorError as error:
        raise JoinRefused(f"{grant.name}: {error}") from None
