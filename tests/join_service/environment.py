"""A join service with an in-memory API server, the PKI of kubeadm, an inventory and attested callers."""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from bootbridge.join_api.components import Component
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_api.messages import (
    ISSUE_REJOIN_TICKET,
    ISSUE_TICKET,
    RejoinRequest,
    RejoinTicket,
    Ticket,
    TicketRequest,
)
from bootbridge.join_api.policy import ClusterFacts, JoinPolicy
from bootbridge.join_service.active_policy import ActivePolicy
from bootbridge.join_service.audit import AuditLog
from bootbridge.join_service.authorization import AttestedCaller
from bootbridge.join_service.control_plane_files import ControlPlaneFiles
from bootbridge.join_service.csr_approver import SIGNER
from bootbridge.join_service.inventory import StaticInventory
from bootbridge.join_service.measurement_secret import MeasurementSecret
from bootbridge.join_service.service import JoinService
from bootbridge.trust.authority import Authority
from bootbridge.trust.evidence import AttestedPeer
from bootbridge.trust.evidence.configuration import VerifierSettings
from tests.support.fake_api_objects import MemoryApi

NOW = 1_800_000_000.0
NAMESPACE = "kube-system"
CLUSTER = ClusterFacts(
    kubernetes_version="v1.36.3",
    api_server_endpoint="10.0.0.1:6443",
    components=(Component("https://example.com/kubeadm", "sha256:" + "ab" * 32, "/usr/bin/kubeadm"),),
    cri_socket="unix:///run/containerd/containerd.sock",
    ignore_preflight_errors=("Swap",),
    service_subnets=("10.96.0.0/12", "fd00:96::/112"),
)


class MemoryLines:
    """The audit log's lines, in memory."""

    def __init__(self) -> None:
        self.dropped = 0
        self._text = ""

    def write(self, line: bytes) -> None:
        self._text += line.decode()

    def getvalue(self) -> str:
        return self._text


MEASUREMENT = MeasurementSecret(bytes(range(32)), bytes(range(32, 64)))


def identity(letter: str, kind: str = "x509") -> str:
    return f"{kind}:sha256:{letter * 64}"


WORKER = Instance(
    "worker-0",
    Role.WORKER,
    (ip_address("10.0.0.5"), ip_address("fd00::5")),
    "cloud://w0",
    identity("a", "tpm"),
)
CONTROL = Instance("control-1", Role.CONTROL_PLANE, (ip_address("10.0.0.2"),), "cloud://c1", identity("b"))
CONTROL_2 = Instance("control-2", Role.CONTROL_PLANE, (ip_address("10.0.0.3"),), "cloud://c2", identity("c"))
UNENROLLED = Instance("worker-1", Role.WORKER, (ip_address("10.0.0.6"),))
INSTANCES = (WORKER, CONTROL, CONTROL_2, UNENROLLED)


def caller(instance: Instance, *, kind: str = "", facts: Mapping[str, str] | None = None) -> AttestedCaller:
    """Returns the caller that an attested channel of this instance has, by default with valid evidence."""
    kind = kind or instance.identity.partition(":")[0] or "x509"
    found = {"pcr15": "00" * 32} if facts is None and kind == "tpm" else facts or {}
    proven = f"token:{found['token']}" if kind == "token" else instance.identity or identity("e")
    return AttestedCaller(AttestedPeer(kind, proven, found), str(instance.addresses[0]))


def csr(
    name: str,
    *,
    sans: Iterable[x509.GeneralName] = (),
    organisations: Iterable[str] = ("system:nodes",),
    common_names: Iterable[str] | None = None,
    key: Any = None,
    more: Iterable[x509.NameAttribute] = (),
) -> bytes:
    """Returns the CSR of a kubelet as DER; every part of it can be changed."""
    names = (f"system:node:{name}",) if common_names is None else common_names
    subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organisations]
    # Other programs also write names that are longer than X.520 allows.
    subject += [x509.NameAttribute(NameOID.COMMON_NAME, each, _validate=False) for each in names]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([*subject, *more]))
    if sans := list(sans):
        builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=False)
    signed = builder.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return signed.public_bytes(Encoding.DER)


def pem(der: bytes) -> str:
    """Returns a PEM CSR as kubelets send it; the DER is not checked."""
    body = "\n".join(textwrap.wrap(base64.b64encode(der).decode(), 64))
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n"


def certificate_request(name: str, node: str) -> dict[str, Any]:
    """Returns a CertificateSigningRequest for the client certificate of this node."""
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "signerName": SIGNER,
            "usages": ["digital signature", "client auth"],
            "request": base64.b64encode(pem(csr(node)).encode()).decode(),
        },
    }


def pki(folder: Path, authority: Authority | None = None) -> Path:
    """Writes the PKI directory of `kubeadm init`."""
    authority = authority or Authority.create("kubernetes")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "etcd").mkdir(exist_ok=True)
    for name in CONTROL_PLANE_FILES:
        (folder / name).write_bytes(f"the content of {name}".encode())
    authority.write(folder, "ca", with_key=True)
    return folder


@dataclass
class Environment:
    """One join service with an in-memory API server and a fixed clock."""

    folder: Path
    instances: tuple[Instance, ...] = INSTANCES
    policy: JoinPolicy = field(
        default_factory=lambda: JoinPolicy(VerifierSettings(), INSTANCES, cluster=CLUSTER)
    )
    now: float = NOW

    def __post_init__(self) -> None:
        self.api = MemoryApi()
        # The fixed clock is some months ahead.
        self.authority = Authority.create("kubernetes", validity=timedelta(days=3650))
        self.pki = pki(self.folder / "pki", self.authority)
        self.log = MemoryLines()
        self.service = self.another_service()

    def another_service(self, *, ahead: float = 0.0) -> JoinService:
        """Returns the join service of another control plane, whose clock may be ahead."""
        return JoinService(
            client=self.api,  # type: ignore[arg-type]
            namespace=NAMESPACE,
            policy=lambda: ActivePolicy(self.policy, (), StaticInventory(self.instances)),
            measurement=MEASUREMENT,
            files=ControlPlaneFiles(self.pki),
            audit=AuditLog(self.log, lambda: self.now),
            clock=lambda: self.now + ahead,
            monotonic=lambda: self.now,
        )

    def allow(self, **changes: Any) -> None:
        self.policy = replace(self.policy, **changes)

    @property
    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    @property
    def token_secrets(self) -> list[dict[str, Any]]:
        return self.api.named("bootstrap-token-")

    async def ticket(
        self, who: AttestedCaller, request: TicketRequest, service: JoinService | None = None
    ) -> Ticket:
        return Ticket.decode(await self.call(ISSUE_TICKET, who, request.encode(), service))

    async def rejoin(self, who: AttestedCaller, request: RejoinRequest) -> RejoinTicket:
        return RejoinTicket.decode(await self.call(ISSUE_REJOIN_TICKET, who, request.encode()))

    async def call(
        self, path: str, who: AttestedCaller, body: bytes, service: JoinService | None = None
    ) -> bytes:
        answers: list[bytes] = []

        async def send(answer: bytes) -> None:
            answers.append(answer)

        await (service or self.service).handlers(who)[path](body, send)
        (answer,) = answers
        return answer


def ticket_request(instance: Instance, **changes: Any) -> TicketRequest:
    """Returns the ticket request of this instance, with changes."""
    request = TicketRequest(instance.name, instance.role is Role.CONTROL_PLANE, csr(instance.name))
    return replace(request, **changes)
