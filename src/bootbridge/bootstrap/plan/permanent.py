"""Decides everything about permanent servers: one beside each kube-apiserver, with agents from the chart.

As `Plan` for a bootstrap: frozen, validated when it is made, without I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from bootbridge.bootstrap.plan.paths import PERMANENT_PATHS, Paths
from bootbridge.bootstrap.plan.plan import ClusterNetwork, TunnelPlan, validate_agent_port
from bootbridge.bootstrap.plan.ports import Ports
from bootbridge.errors import OperatorError
from bootbridge.runtime.destination_policy import ALLOW_FLAG, parse_rules

# Those of Konnectivity's documentation. They differ from the ports of `up`, so that both can run on a node.
PERMANENT_PORTS = Ports(
    agent=8132, server_health=8134, server_admin=8133, agent_health=8093, agent_admin=8094
)
AUDIENCE = "system:konnectivity-server"
# The chart's names for a release `bootbridge` in a namespace of the same name.
AGENT_NAMESPACE, AGENT_SERVICE_ACCOUNT = "bootbridge", "bootbridge-agent"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class AgentAuthentication(StrEnum):
    """Names how agents authenticate to the server."""

    CERTIFICATE = "certificate"
    TOKEN = "token"


@dataclass(frozen=True)
class PermanentPlan(TunnelPlan):
    """Holds all decisions about permanent servers. Raises OperatorError if one is invalid."""

    ports: Ports = PERMANENT_PORTS
    server_hosts: tuple[str, ...] = ()  # what agents dial: a load balancer, or each control plane
    server_count: int = 0  # announced to agents; 0: agents count leases
    authentication: AgentAuthentication = AgentAuthentication.CERTIFICATE
    token_audience: str = AUDIENCE
    agent_namespace: str = AGENT_NAMESPACE
    agent_service_account: str = AGENT_SERVICE_ACCOUNT
    prove_nodes: bool = True  # whether agents prove their node by a token of their pod
    cluster_networks: tuple[ClusterNetwork, ...] = ()  # empty: agents advertise no pods
    host_network: bool = False  # whether agents use their node's network
    destinations: tuple[str, ...] = ()  # what agents may dial; empty: all that is not refused by default

    server_pod_name = "bootbridge-server"
    # The user in the server's kubeconfig, to whom its roles are bound.
    server_user = "system:konnectivity-server"

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def paths(self) -> Paths:
        return PERMANENT_PATHS

    @property
    def server_labels(self) -> dict[str, str]:
        return {"component": self.server_pod_name, "tier": "control-plane"}

    @property
    def reviews_tokens(self) -> bool:
        return self.authentication is AgentAuthentication.TOKEN

    @property
    def publishes_leases(self) -> bool:
        return not self.server_count

    @property
    def needs_kubeconfig(self) -> bool:
        return self.reviews_tokens or self.publishes_leases or self.prove_nodes


def _validate(plan: PermanentPlan) -> None:
    validate_agent_port(plan.ports.agent)
    if plan.image.from_payload:
        hint = "give --image=REFERENCE, an image that `bootbridge image build` has made"
        raise OperatorError("required flag missing", subject="--image", hint=hint)
    if not plan.image.is_ours:
        hint = "use upstream's manifests for the Go server"
        raise OperatorError("not supported with --permanent", subject="--image-is konnectivity", hint=hint)
    if not plan.server_hosts:
        hint = "give the load balancer of the servers, or the address of each control plane"
        raise OperatorError("required flag missing", subject="--server-host", hint=hint)
    for host in plan.server_hosts:
        _validate_host(host)
    if plan.server_count < 0:
        raise OperatorError(f"invalid number {plan.server_count}", subject="--server-count", hint="1 or more")
    for flag, name in (
        ("--agent-namespace", plan.agent_namespace),
        ("--agent-service-account", plan.agent_service_account),
    ):
        if not _NAME.fullmatch(name):
            hint = "lower case letters, digits, '-' and '.'"
            raise OperatorError(f"invalid name {name!r}", subject=flag, hint=hint)
    if plan.reviews_tokens and plan.prove_nodes and plan.token_audience == AUDIENCE:
        hint = "give the kube-apiserver's --service-account-issuer: it must accept the token, too"
        raise OperatorError("required with --prove-nodes", subject="--token-audience", hint=hint)
    if not plan.token_audience or any(character.isspace() for character in plan.token_audience):
        raise OperatorError(f"invalid audience {plan.token_audience!r}", subject="--token-audience")
    parse_rules(plan.destinations, ALLOW_FLAG)


def _validate_host(host: str) -> None:
    # Two colons or more are an IPv6 address; a single one starts a port.
    if host.count(":") == 1 or "]" in host:
        hint = "give the port with --agent-port, and IPv6 addresses without brackets"
        raise OperatorError(f"invalid host {host!r}", subject="--server-host", hint=hint)
    if not host or any(character.isspace() or character in ",/'\"\\$`" for character in host):
        hint = "one host name or address; repeat the flag for further ones"
        raise OperatorError(f"invalid host {host!r}", subject="--server-host", hint=hint)
