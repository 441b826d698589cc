"""Puts what a ticket brings where kubeadm and the kubelet look for it: checked, whole, keys for root alone.

A retry writes its own files again. Nothing is written before everything has been looked at.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.errors import PeerError
from bootbridge.join_api import node_paths
from bootbridge.join_api.messages import ControlPlaneFile, Ticket
from bootbridge.node.join.ticket_check import file_faults

_PUBLIC_KEY = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


class TicketUnusable(PeerError):
    """What the join service sent must not be, or cannot be, put on this machine."""


def write_ticket(host: Host, ticket: Ticket, kubelet_key: bytes) -> None:
    """The kubelet's certificate and key, and on a control plane its authorities."""
    if wrong := file_faults(ticket):
        raise TicketUnusable(f"the ticket cannot be used: {'; '.join(wrong)}")
    assets = dict(map(_control_plane_asset, ticket.control_plane_files))
    check_pair(ticket.kubelet_certificate, kubelet_key)
    # First, since it is what shows that a ticket was at work here (kubeadm/reset.py), if power fails now.
    _write_serving(host, ticket.kubelet_certificate, kubelet_key)
    for path, asset in assets.items():
        host.make_directory(path.rpartition("/")[0])
        host.write(path, asset)


def write_serving(host: Host, certificate: bytes, key: bytes) -> None:
    """The kubelet's serving certificate (PEM) and its key; a kubelet that runs reads them again by itself.

    In one file and with one rename: at no moment does a certificate lie beside another's key.
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
    """A kubelet with another's certificate would not start, and nobody would know why.

    Both may be the whole file: whatever else is in it is passed over, as a kubelet does.
    """
    try:
        shown = x509.load_pem_x509_certificate(certificate)
        own = serialization.load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError):
        raise TicketUnusable("the kubelet's certificate or its key cannot be read") from None
    if shown.public_key().public_bytes(*_PUBLIC_KEY) != own.public_bytes(*_PUBLIC_KEY):
        raise TicketUnusable("the kubelet's certificate is for another key than ours")
    return shown
