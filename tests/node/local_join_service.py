"""A join service on loopback that issues worker tickets, with real TLS and evidence."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address

from bootbridge.join_api.kubelet_certificate import KubeletCa, KubeletCsr
from bootbridge.join_api.messages import (
    ISSUE_REJOIN_TICKET,
    ISSUE_TICKET,
    JOIN_LABEL,
    RejoinRequest,
    RejoinTicket,
    Ticket,
    TicketRequest,
)
from bootbridge.runtime.grpc import RpcError, Send, serve
from bootbridge.trust.attested.channel import Attestation, AttestedChannel, AttestedListener
from bootbridge.trust.evidence import AttestedPeer
from bootbridge.trust.evidence.configuration import verifiers_from
from bootbridge.wire import grpc_messages as grpc
from tests.node.local_instance import LocalInstance

BOOTSTRAP_TOKEN = "abcdef.0123456789abcdef"


@dataclass
class LocalJoinService:
    """Issues worker tickets to trusted instances and records the requests."""

    instance: LocalInstance
    refusal: str = ""
    # How long ago its certificates were made; each is good for an hour.
    age_seconds: float = 0.0
    measurement_secret: bytes = bytes(range(32))
    asked: list[TicketRequest] = field(default_factory=list)
    callers: list[AttestedPeer | None] = field(default_factory=list)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        pem = self.instance.authority.cert_pem.decode()
        verifiers = verifiers_from({"x509": {"cas": pem}}, "policy")
        listener = await AttestedListener.open(
            "127.0.0.1",
            0,
            label=JOIN_LABEL,
            attestation=lambda: Attestation(verifiers=verifiers),
            handle=self._converse,
        )
        try:
            yield listener.port
        finally:
            await listener.stop()

    async def _converse(self, channel: AttestedChannel) -> None:
        self.callers.append(channel.peer)
        handlers = {ISSUE_TICKET: self._ticket, ISSUE_REJOIN_TICKET: self._rejoin_ticket}
        await serve(channel.reader, channel.writer, handlers, stopping=channel.stopping)

    def _certificate(self, request: TicketRequest | RejoinRequest) -> bytes:
        folder = self.instance.folder / "cluster-ca"
        authority = KubeletCa((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())
        return authority.sign(
            KubeletCsr(request.certificate_request),
            request.node_name,
            (ip_address("127.0.0.1"),),
            now=time.time() - self.age_seconds,
            validity=timedelta(hours=1),
        )

    async def _rejoin_ticket(self, body: bytes, send: Send) -> None:
        request = RejoinRequest.decode(body)
        await send(RejoinTicket(request.node_name, self._certificate(request)).encode())

    async def _ticket(self, body: bytes, send: Send) -> None:
        request = TicketRequest.decode(body)
        self.asked.append(request)
        if self.refusal:
            raise RpcError(grpc.PERMISSION_DENIED, self.refusal)
        certificate = self._certificate(request)
        ticket = Ticket(
            node_name=request.node_name,
            kubernetes_version="v1.36.3",
            api_server_endpoint="127.0.0.1:6443",
            token=BOOTSTRAP_TOKEN,
            token_seconds=900,
            ca_certificate_hashes=("sha256:" + "00" * 32,),
            kubelet_certificate=certificate,
            measurement_secret=self.measurement_secret,
            measurement_salt=bytes(range(32, 64)),
            addresses=("127.0.0.1",),
            cri_socket="unix:///run/containerd/containerd.sock",
        )
        await send(ticket.encode())
