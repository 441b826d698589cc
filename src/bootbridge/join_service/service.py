"""The two calls of the join service: a ticket for a new instance, and one for a node that was rebooted.

Everything that can be refused is refused before anything is made: claims, certificate request, the bond of
the name, the lease of control planes; the token comes last. Callers do not wait for one another, but for a
place among those that are served at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
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
from bootbridge.join_service import audit as outcomes
from bootbridge.join_service import bootstrap_tokens
from bootbridge.join_service.active_policy import ActivePolicy
from bootbridge.join_service.audit import AuditLog
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

# One convoy that is under way and one that gathers. More would only queue at the API server; whoever comes
# later waits here, on an open and attested channel.
TICKETS_IN_PROGRESS_MAX: Final = 2 * BATCH_MAX

# An instance has a channel for each address that it finds the service at, a few at a time.
CHANNELS_PER_KEY_MAX: Final = 8

# A control plane whose turn is over undoes what it did, which takes its new member out of etcd again: the
# next one has to wait for that, too. The limits of kubeadm's reset and of the kubelet's stop are below it.
UNDO_SECONDS: Final = 300

Asked = TypeVar("Asked", TicketRequest, RejoinRequest)


@dataclass
class _Account:
    """What the audit will say about one call, as far as it is known."""

    what: str
    name: str = ""
    role: str = ""
    token: str = ""

    def noted(self, token: str) -> None:
        self.token = token


@dataclass
class JoinService:
    client: KubeClient
    namespace: str
    policy: Callable[[], ActivePolicy]
    measurement: MeasurementSecret
    files: ControlPlaneFiles
    audit: AuditLog
    clock: Callable[[], float]
    # How much time has passed, whatever the time is.
    steady: Callable[[], float] = time.monotonic
    tickets_in_progress_max: int = TICKETS_IN_PROGRESS_MAX
    # Open channels and those that are becoming one; whoever has asked is among them.
    connections: Callable[[], int] = lambda: 0
    issued: int = 0
    refused: int = 0
    _present: Counter[str] = field(init=False, repr=False, default_factory=Counter)
    _places: asyncio.Semaphore = field(init=False, repr=False)
    _asking: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.tickets_in_progress_max)
        self._convoy = WriteBatcher(lambda: self.connections() - self._asking)
        self._bindings = NameBindings(self.client, self.namespace)
        self._tickets = TicketLimit(self.clock)
        self._rejoins = TicketLimit(self.clock)
        self._lease = ControlPlaneLease(self.client, self.namespace, self.clock, self.steady)

    @contextmanager
    def present(self, caller: AttestedCaller) -> Iterator[bool]:
        """Around a channel of the caller's; False: its key has as many as it may have."""
        key = caller.attested.identity
        if key and self._present[key] >= CHANNELS_PER_KEY_MAX:
            yield False
            return
        self._present[key] += 1
        try:
            yield True
        finally:
            self._present[key] -= 1
            if not self._present[key]:
                del self._present[key]

    def handlers(self, caller: AttestedCaller) -> dict[str, Handler]:
        """For one attested channel."""
        return {
            ISSUE_TICKET: self._handler("ticket", caller, TicketRequest, self._ticket),
            ISSUE_REJOIN_TICKET: self._handler("rejoin ticket", caller, RejoinRequest, self._rejoin_ticket),
        }

    # --- what is given

    async def _ticket(self, request: TicketRequest, caller: AttestedCaller, account: _Account) -> Ticket:
        force = self.policy()
        policy, cluster = force.policy, force.policy.cluster
        asked = KubeletCsr(request.certificate_request)
        listed = await force.inventory.listed()
        grant = authorize_ticket(request, asked.fingerprint, caller, listed, policy.roles)
        account.role = grant.role
        self._tickets.require_room(grant.holder)
        authority = self.files.authority()
        certificate = self._certificate(authority, asked, grant, policy.ticket.certificate_days)
        addresses = _addresses(grant, cluster)
        files = self.files.all() if grant.control_plane else ()
        await self._bind(grant, caller)
        turn = policy.ticket.control_plane_join_seconds if grant.control_plane else 0
        if turn:
            await self._lease.take(grant.name, turn + UNDO_SECONDS)
        with self._tickets.one_more(grant.holder, policy.ticket.token_seconds):
            token = await bootstrap_tokens.mint(
                self.client, grant.name, self.clock(), policy.ticket.token_seconds, account.noted
            )
        return Ticket(
            node_name=grant.name,
            control_plane=grant.control_plane,
            kubernetes_version=cluster.kubernetes_version,
            api_server_endpoint=cluster.api_server_endpoint,
            token=token.text,
            token_seconds=policy.ticket.token_seconds,
            turn_seconds=turn,
            ca_certificate_hashes=authority.pins,
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

    async def _rejoin_ticket(
        self, request: RejoinRequest, caller: AttestedCaller, account: _Account
    ) -> RejoinTicket:
        """For one that is a node: so neither the roles that may join nor the lease have a say in it."""
        force = self.policy()
        terms = force.policy.ticket
        asked = KubeletCsr(request.certificate_request)
        listed = await force.inventory.listed()
        grant = authorize_rejoin(request, asked.fingerprint, caller, listed, self.measurement.locked_value)
        account.role = grant.role
        with self._rejoins.one_more(grant.holder, terms.token_seconds):
            certificate = self._certificate(self.files.authority(), asked, grant, terms.certificate_days)
            await self._bindings.recognise(grant, _evidence_token(caller))
        return RejoinTicket(grant.name, certificate)

    async def _bind(self, grant: Grant, caller: AttestedCaller) -> None:
        """The first that is asked of the API server for a ticket; what follows, follows in step."""
        await self._convoy.join()
        await self._bindings.bind(grant, _evidence_token(caller))

    def _certificate(self, authority: KubeletCa, asked: KubeletCsr, grant: Grant, days: int) -> bytes:
        return authority.sign(
            asked, grant.name, grant.instance.addresses, now=self.clock(), validity=timedelta(days=days)
        )

    # --- how it is answered

    def _handler(
        self,
        what: str,
        caller: AttestedCaller,
        kind: type[Asked],
        give: Callable[[Asked, AttestedCaller, _Account], Awaitable[Message]],
    ) -> Handler:
        async def handle(body: bytes, send: Send) -> None:
            account = _Account(what)
            self._asking += 1
            try:
                request = kind.decode(body)
                account.name = request.node_name
                async with self._places:
                    answer = await give(request, caller, account)
            except BootbridgeError as error:
                raise self._told(error, caller, account) from error
            except asyncio.CancelledError:
                self._note(outcomes.FAILED, caller, account, "the caller left")
                raise
            finally:
                self._asking -= 1
            self.issued += 1
            self._note(outcomes.ISSUED, caller, account)
            await send(answer.encode())

        return handle

    def _told(self, error: BootbridgeError, caller: AttestedCaller, account: _Account) -> RpcError:
        """What the caller is told, after the audit was; our own troubles are for the log."""
        if isinstance(error, MessageError):
            error = JoinRefused(f"the request cannot be read: {error}")
        if isinstance(error, JoinRefused):
            self.refused += 1
            self._note(outcomes.REFUSED, caller, account, str(error))
            return RpcError(grpc.PERMISSION_DENIED, str(error))
        if isinstance(error, RetryLater):
            self._note(outcomes.NOT_YET, caller, account, str(error))
            return RpcError(grpc.UNAVAILABLE, f"try again: {error}")
        self._note(outcomes.FAILED, caller, account, str(error))
        logs.event("join-service", logs.ERROR, "a ticket cannot be issued", node=account.name, reason=error)
        if isinstance(error, KubeError | KubeUnreachable):
            return RpcError(grpc.UNAVAILABLE, "try again: the join service has trouble with its API server")
        return RpcError(grpc.UNAVAILABLE, "try again: the join service is not in order; its log says why")

    def _note(self, outcome: str, caller: AttestedCaller, account: _Account, reason: str = "") -> None:
        self.audit.record(
            account.what,
            outcome,
            caller,
            name=account.name,
            role=account.role,
            reason=reason,
            token=account.token,
        )


def _evidence_token(caller: AttestedCaller) -> str:
    return caller.attested.facts.get("token", "")


def _addresses(grant: Grant, cluster: ClusterFacts) -> tuple[str, ...]:
    """Those that the first node would go by, were it this machine."""
    try:
        return tuple(map(str, node_addresses(grant.instance.addresses, cluster.families)))
    except OperatorError as error:
        raise JoinRefused(f"{grant.name}: {error}") from None
