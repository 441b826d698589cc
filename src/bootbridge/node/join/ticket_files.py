"""Writes the certificates and keys of a ticket to the paths where kubeadm and the kubelet expect them.

Everything is validated before the first write. Keys are readable by root only. May be repeated.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.errors import PeerError
from bootbridge.join_api.messages import ControlPlaneFile, Ticket
from bootbridge.node import node_paths
from bootbridge.node.join.ticket_check import file_faults

_PUBLIC_KEY = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


class TicketUnusable(PeerError):
    """The ticket contains files that cannot or must not be written."""


def write_ticket(host: Host, ticket: Ticket, kubelet_key: bytes) -> None:
    """Writes the kubelet's certificate and key and, on a control plane, the CA files."""
    if faults := file_faults(ticket):
        raise TicketUnusable(f"invalid ticket: {'; '.join(faults)}")
    assets = dict(map(_control_plane_asset, ticket.control_plane_files))
    check_pair(ticket.kubelet_certificate, kubelet_key)
    # First: after a power failure, this file tells `kubeadm.leftovers` that a ticket was written.
    _write_serving(host, ticket.kubelet_certificate, kubelet_key)
    for path, asset in assets.items():
        host.make_directory(path.rpartition("/")[0])
        host.write(path, asset)


def write_serving(host: Host, certificate: bytes, key: bytes) -> None:
    """Writes the kubelet's serving certificate and key (PEM); a running kubelet reloads them.

    One file and one rename, so that certificate and key always match.
    """
    check_pair(certificate, key)
    _write_serving(host, certificate, key)


def _write_serving(host: Host, certificate: bytes, key: bytes) -> None:
    host.make_directory(node_paths.KUBELET_PKI, 0o700)
    host.write(node_paths.SERVING, Asset(certificate.rstrip() + b"\n" + key, 0o600))
    host.sync_directory(node_paths.KUBELET_PKI)


def _control_plane_asset(file: ControlPlaneFile) -> tuple[str, Asset]:
    mode = 0o600 if file.name.endswith(".key") else 0o644
    return f"{node_paths.PKI}/{file.name}", Asset(file.data, mode)


def check_pair(certificate: bytes, key: bytes) -> x509.Certificate:
    """Raises TicketUnusable unless the key belongs to the certificate; else the kubelet would not start.

    Both arguments may be the whole PEM file: other blocks are ignored, as the kubelet does.
    """
    try:
        shown = x509.load_pem_x509_certificate(certificate)
        own = serialization.load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError):
        raise TicketUnusable("kubelet certificate or key: invalid PEM") from None
    if shown.public_key().public_bytes(*_PUBLIC_KEY) != own.public_bytes(*_PUBLIC_KEY):
        raise TicketUnusable("kubelet certificate: does not match the key")
    return shown
