"""Example cluster specs, instances and tickets for each address family."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.messages import Ticket

VERSION = "v1.36.3"
PIN = "sha256:" + "ab" * 32
TOKEN = "abcdef.0123456789abcdef"
ADDRESSES = {"ipv4": ("10.0.0.5",), "ipv6": ("fd00:10::5",), "dual": ("10.0.0.5", "fd00:10::5")}
SERVICES = {
    "ipv4": ("172.30.0.0/16",),
    "ipv6": ("fd00:172:30::/112",),
    "dual": ("172.30.0.0/16", "fd00:172:30::/112"),
}
PODS = {
    "ipv4": ("10.128.0.0/14",),
    "ipv6": ("fd00:10:128::/48",),
    "dual": ("10.128.0.0/14", "fd00:10:128::/48"),
}
FAMILIES = tuple(ADDRESSES)


def spec(families: str = "ipv4", **fields: Any) -> ClusterSpec:
    subnets = {"service_subnets": SERVICES[families], "pod_subnets": PODS[families]}
    return ClusterSpec(**{"kubernetes_version": VERSION, **subnets, **fields})


def instance(families: str = "ipv4", **fields: Any) -> Instance:
    made = Instance("cp-0", Role.CONTROL_PLANE, tuple(map(ip_address, ADDRESSES[families])))
    return replace(made, **fields)


def ticket(families: str = "ipv4", **fields: Any) -> Ticket:
    made = Ticket(
        node_name="node-1",
        kubernetes_version=VERSION,
        api_server_endpoint="lb.example:6443",
        token=TOKEN,
        token_seconds=900,
        ca_certificate_hashes=(PIN,),
        addresses=ADDRESSES[families],
        cri_socket="unix:///run/containerd/containerd.sock",
    )
    return replace(made, **fields)
