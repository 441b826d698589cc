"""The join service's gRPC messages, sent over attested TLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bootbridge.join_api.components import Component
from bootbridge.wire.proto import Message, at

JOIN_PORT: Final = 30090
ISSUE_TICKET: Final = "/bootbridge.join.v1.Join/IssueTicket"
ISSUE_REJOIN_TICKET: Final = "/bootbridge.join.v1.Join/IssueRejoinTicket"
# Binds evidence to this use of it (trust/attested/channel_binding.py).
JOIN_LABEL: Final = "bootbridge join v1"


@dataclass(frozen=True, slots=True)
class TicketRequest(Message):
    """Claims, each checked against the metadata; a false one is refused, never corrected."""

    node_name: str = at(1, "")
    control_plane: bool = at(2, False)
    # The CSR of the kubelet's serving certificate: DER, P-256, O=system:nodes, CN=system:node:<name>.
    certificate_request: bytes = at(3, b"")


@dataclass(frozen=True, slots=True)
class ControlPlaneFile(Message):
    name: str = at(1, "")
    data: bytes = at(2, b"", secret=True)


@dataclass(frozen=True, slots=True)
class Ticket(Message):
    node_name: str = at(1, "")
    control_plane: bool = at(2, False)
    kubernetes_version: str = at(3, "")
    api_server_endpoint: str = at(4, "")  # host:port
    token: str = at(5, "", secret=True)
    # Relative to the request, like the turn: no two clocks are compared.
    token_seconds: int = at(6, 0)
    ca_certificate_hashes: tuple[str, ...] = at(7, ())
    kubelet_certificate: bytes = at(8, b"")  # PEM
    control_plane_files: tuple[ControlPlaneFile, ...] = at(9, ())
    measurement_secret: bytes = at(10, b"", secret=True)
    measurement_salt: bytes = at(11, b"")
    components: tuple[Component, ...] = at(12, ())
    # From the metadata: the kubelet's node-ip and provider-id.
    addresses: tuple[str, ...] = at(13, ())
    provider_id: str = at(14, "")
    cri_socket: str = at(15, "")
    ignore_preflight_errors: tuple[str, ...] = at(16, ())
    # A control plane that has not joined by then undoes its join, for the next one. 0: no limit.
    turn_seconds: int = at(17, 0)


@dataclass(frozen=True, slots=True)
class RejoinRequest(Message):
    """From a rebooted node, whose name is bound to its evidence's key."""

    node_name: str = at(1, "")
    certificate_request: bytes = at(2, b"")


@dataclass(frozen=True, slots=True)
class RejoinTicket(Message):
    """A new serving certificate; a node has everything else already."""

    node_name: str = at(1, "")
    kubelet_certificate: bytes = at(2, b"")  # PEM
