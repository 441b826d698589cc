"""Validates a ticket before it is used."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

from bootbridge.common.failures import Transient
from bootbridge.join_api.instance import Instance, Role, node_name
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_api.messages import Ticket
from bootbridge.trust.fingerprint import is_fingerprint

_VERSION = re.compile(r"v1\.\d{1,3}\.\d{1,3}(-[0-9A-Za-z.-]{1,64})?")
_TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+):\d{1,5}")


def check(ticket: Ticket, instance: Instance) -> None:
    """Raises Transient with all faults: another join service may issue a valid ticket."""
    if faults := _faults(ticket, instance):
        raise Transient(f"invalid ticket: {'; '.join(faults)}")


def _faults(ticket: Ticket, instance: Instance) -> list[str]:
    control_plane = instance.role is Role.CONTROL_PLANE
    checks = {
        f"node name is {ticket.node_name!r}": ticket.node_name == node_name(instance.name),
        "wrong role": ticket.control_plane is control_plane,
        f"invalid Kubernetes version {ticket.kubernetes_version!r}": _VERSION.fullmatch(
            ticket.kubernetes_version
        ),
        f"invalid API server endpoint {ticket.api_server_endpoint!r}": _ENDPOINT.fullmatch(
            ticket.api_server_endpoint
        ),
        "invalid bootstrap token": _TOKEN.fullmatch(ticket.token),
        "invalid token or turn duration": ticket.token_seconds > 0
        and (ticket.turn_seconds > 0) is control_plane,
        "CA certificate hash missing or invalid": ticket.ca_certificate_hashes
        and all(map(is_fingerprint, ticket.ca_certificate_hashes)),
        "invalid address": _are_addresses(ticket.addresses),
        "kubelet certificate missing": ticket.kubelet_certificate,
    }
    faults = [fault for fault, good in checks.items() if not good]
    return faults + file_faults(ticket) + _component_faults(ticket)


def file_faults(ticket: Ticket) -> list[str]:
    """Names are paths below the PKI directory: every known name is required once, any other is rejected."""
    files = ticket.control_plane_files
    names = [file.name for file in files]
    faults = [
        f"unknown control plane file {name!r}" for name in sorted(set(names) - set(CONTROL_PLANE_FILES))
    ]
    if not ticket.control_plane:
        return [*faults, "worker ticket with control plane files"] if files else []
    if missing := [name for name in CONTROL_PLANE_FILES if name not in names]:
        faults.append(f"control plane files missing: {', '.join(missing)}")
    if len(names) != len(set(names)) or not all(file.data for file in files):
        faults.append("duplicate or empty control plane file")
    return faults


def _component_faults(ticket: Ticket) -> list[str]:
    return [f"component {each.install_path}: {fault}" for each in ticket.components for fault in each.faults]


def _are_addresses(texts: Iterable[str]) -> bool:
    try:
        return all(map(ip_address, texts))
    except ValueError:
        return False
