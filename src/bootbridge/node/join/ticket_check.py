"""Whether a ticket can be ours, before it is used: the join service is trusted, but not blindly."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

from bootbridge.common.failures import Transient
from bootbridge.join_api.instance import Instance, Role, node_name
from bootbridge.join_api.messages import CONTROL_PLANE_FILES, Ticket
from bootbridge.trust.fingerprint import is_fingerprint

_VERSION = re.compile(r"v1\.\d{1,3}\.\d{1,3}(-[0-9A-Za-z.-]{1,64})?")
_TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+):\d{1,5}")


def check(ticket: Ticket, instance: Instance) -> None:
    """Raises Transient with all that is wrong: another join service may have a better one."""
    if wrong := _faults(ticket, instance):
        raise Transient(f"the ticket cannot be used: {'; '.join(wrong)}")


def _faults(ticket: Ticket, instance: Instance) -> list[str]:
    control_plane = instance.role is Role.CONTROL_PLANE
    checks = {
        f"it is for {ticket.node_name!r}": ticket.node_name == node_name(instance.name),
        "it is for another role": ticket.control_plane is control_plane,
        f"{ticket.kubernetes_version!r} is no Kubernetes version": _VERSION.fullmatch(
            ticket.kubernetes_version
        ),
        f"{ticket.api_server_endpoint!r} is no API server": _ENDPOINT.fullmatch(ticket.api_server_endpoint),
        "its token is none of kubeadm's": _TOKEN.fullmatch(ticket.token),
        "it gives no time to join": ticket.token_seconds > 0 and (ticket.turn_seconds > 0) is control_plane,
        "it pins no authority": ticket.ca_certificate_hashes
        and all(map(is_fingerprint, ticket.ca_certificate_hashes)),
        "its addresses cannot be read": _are_addresses(ticket.addresses),
        "it has no kubelet certificate": ticket.kubelet_certificate,
    }
    faults = [fault for fault, good in checks.items() if not good]
    return faults + file_faults(ticket) + _component_faults(ticket)


def file_faults(ticket: Ticket) -> list[str]:
    """A name is a path below the authorities' directory: all of the known ones, each once, and no other."""
    files = ticket.control_plane_files
    names = [file.name for file in files]
    faults = [
        f"it brings a file named {name!r}, which has no place here"
        for name in sorted(set(names) - set(CONTROL_PLANE_FILES))
    ]
    if not ticket.control_plane:
        return [*faults, "it is a worker's, and brings files of a control plane"] if files else []
    if missing := [name for name in CONTROL_PLANE_FILES if name not in names]:
        faults.append(f"it is a control plane's, and lacks {', '.join(missing)}")
    if len(names) != len(set(names)) or not all(file.data for file in files):
        faults.append("it brings a file twice, or one that is empty")
    return faults


def _component_faults(ticket: Ticket) -> list[str]:
    return [f"component {each.install_path}: {fault}" for each in ticket.components for fault in each.faults]


def _are_addresses(texts: Iterable[str]) -> bool:
    try:
        return all(map(ip_address, texts))
    except ValueError:
        return False
