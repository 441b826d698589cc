"""Lists every variant of the manifests: flavour, image, agents' network, protocol, primary IP version."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from ipaddress import ip_network
from itertools import product
from typing import Any

from bootbridge.bootstrap.machine.node_values import NodeValues
from bootbridge.bootstrap.plan.plan import ClusterNetwork, Flavour, Networking, Plan, Protocol, ProxyImage
from bootbridge.bootstrap.render import manifests

IMAGES = (
    ProxyImage("konnectivity", "registry.example/konnectivity:1"),
    ProxyImage("bootbridge", "registry.example/b:1"),
)
IPV6 = Networking(
    machine=(ip_network("fd10::/64"),),
    cluster=(ClusterNetwork(ip_network("fd01::/48"), 64),),
    service=(ip_network("fd02::/112"),),
)
VALUES = NodeValues(
    image="registry.example/b:1",
    server_hosts="192.0.2.5",
    ca_cert_base64=base64.b64encode(b"the CA").decode(),
    agent_cert_base64=base64.b64encode(b"the certificate").decode(),
    agent_key_base64=base64.b64encode(b"the key").decode(),
)


@dataclass(frozen=True)
class Variant:
    plan: Plan

    def __str__(self) -> str:
        plan = self.plan
        network = "host" if plan.host_network else "pod"
        family = f"ipv{plan.networks.families[0]}"
        return f"{plan.flavour}-{plan.image.kind}-{network}-{plan.protocol}-{family}"

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Returns the manifests in the order of their creation."""
        return [
            manifests.server_pod(self.plan, VALUES),
            manifests.namespace(self.plan),
            manifests.agent_secret(self.plan, VALUES),
            *self.proof,
            manifests.agent_daemonset(self.plan, VALUES),
        ]

    @property
    def proof(self) -> list[dict[str, Any]]:
        if not self.plan.proves_nodes:
            return []
        return [manifests.agent_role(self.plan), manifests.agent_role_binding(self.plan)]


ALL = [
    Variant(Plan(flavour=flavour, image=image, host_network=host, protocol=protocol, networks=networks))
    for flavour, image, host, protocol, networks in product(
        Flavour, IMAGES, (False, True), Protocol, (Networking(), IPV6)
    )
]
