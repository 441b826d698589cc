"""What an instance asks of the join service, and what it is given: protobuf, over attested TLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bootbridge.join_api.components import Component
from bootbridge.wire.proto import Message, at

JOIN_PORT: Final = 30090
ISSUE_TICKET: Final = "/bootbridge.join.v1.Join/IssueTicket"
ISSUE_REJOIN_TICKET: Final = "/bootbridge.join.v1.Join/IssueRejoinTicket"
# The label that binds evidence to this use of it (trust/attested/channel_binding.py).
JOIN_LABEL: Final = "bootbridge join v1"


@dataclass(frozen=True, slots=True)
class TicketRequest(Message):
    """Claims, each of which is checked against the metadata; a false one is refused, never corrected."""

    node_name: str = at(1, "")
    control_plane: bool = at(2, False)
    # For the kubelet's serving certificate: DER, P-256, O=system:nodes, CN=system:node:<name>.
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
    # Counted, as the turn is, from when the ticket was asked for: no two clocks are compared.
    token_seconds: int = at(6, 0)
    ca_certificate_hashes: tuple[str, ...] = at(7, ())
    kubelet_certificate: bytes = at(8, b"")  # PEM
    control_plane_files: tuple[ControlPlaneFile, ...] = at(9, ())
    measurement_secret: bytes = at(10, b"", secret=True)
    measurement_salt: bytes = at(11, b"")
    components: tuple[Component, ...] = at(12, ())
    # The instance as the metadata knows it: kubelet's node-ip and provider-id.
    addresses: tuple[str, ...] = at(13, ())
    provider_id: str = at(14, "")
    cri_socket: str = at(15, "")
    ignore_preflight_errors: tuple[str, ...] = at(16, ())
    # A control plane's turn: what it has not done by then it undoes, for the next one joins. 0: nobody waits.
    turn_seconds: int = at(17, 0)


@dataclass(frozen=True, slots=True)
class RejoinRequest(Message):
    """From a node that was rebooted: its name is bound to the key that its evidence is made with."""

    node_name: str = at(1, "")
    certificate_request: bytes = at(2, b"")


@dataclass(frozen=True, slots=True)
class RejoinTicket(Message):
    """A new serving certificate, and nothing that a node does not have already."""

    node_name: str = at(1, "")
    kubelet_certificate: bytes = at(2, b"")  # PEM
