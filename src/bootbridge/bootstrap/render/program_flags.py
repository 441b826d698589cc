"""Renders the command lines of server and agent, depending on the image.

The Go programs get only flags that every release since 4.11 supports. Ours get more: routing by CIDR, direct
dials into the machine networks until the first agent connects, destinations inside the cluster's networks
only, TLS 1.3 only, and a graceful shutdown.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from bootbridge.bootstrap.machine.node_values import NodeValues
from bootbridge.bootstrap.plan.permanent import PermanentPlan
from bootbridge.bootstrap.plan.plan import ClusterNetwork, Plan, TunnelPlan

CERTIFICATES_SEEN_BY_SERVER = "/etc/konnectivity"
CERTIFICATES_SEEN_BY_AGENT = "/etc/konnectivity"
APISERVER_ADDRESS_FILE = "apiserver.kubeconfig"
TOKEN_SEEN_BY_AGENT = "/var/run/secrets/bootbridge"
LOOPBACK = "127.0.0.1"
KEEPALIVE = "30s"
# Time for open connections after SIGTERM. The pod's grace period is 5 s longer.
SERVER_DRAIN_SECONDS = 10
AGENT_DRAIN_SECONDS = 25


def server_args(plan: Plan) -> list[str]:
    """Returns the arguments of proxy-server."""
    return [
        *_listener_args(plan),
        f"--cluster-ca-cert={CERTIFICATES_SEEN_BY_SERVER}/ca.crt",
        *(_our_server_args(plan) if plan.image.is_ours else ["--proxy-strategies=destHost,defaultRoute"]),
    ]


def _listener_args(plan: TunnelPlan) -> list[str]:
    """Returns sockets, ports and certificates, which every server has."""
    tls, ports = CERTIFICATES_SEEN_BY_SERVER, plan.ports
    return [
        "--logtostderr=true",
        f"--mode={plan.protocol.server_mode}",
        f"--uds-name={plan.paths.socket}",
        "--delete-existing-uds-file=true",
        "--server-port=0",
        f"--agent-port={ports.agent}",
        f"--cluster-cert={tls}/server.crt",
        f"--cluster-key={tls}/server.key",
        f"--health-port={ports.server_health}",
        f"--health-bind-address={LOOPBACK}",
        f"--admin-port={ports.server_admin}",
        f"--admin-bind-address={LOOPBACK}",
        f"--keepalive-time={KEEPALIVE}",
        f"--frontend-keepalive-time={KEEPALIVE}",
    ]


_OUR_LIMITS = ("--tls-min-version=VersionTLS13", f"--graceful-shutdown-timeout={SERVER_DRAIN_SECONDS}s")


def _our_server_args(plan: Plan) -> list[str]:
    # Dials kubelets directly until an agent connects, so that logs and exec work at once.
    return [
        "--proxy-strategies=destHost,cidr,defaultRoute,direct",
        f"--direct-cidrs={','.join(map(str, plan.networks.machine))}",
        *_OUR_LIMITS,
        f"--agent-namespace={plan.namespace}",
        f"--agent-service-account={plan.service_account_name}",
        *_proof_args(plan.networks.cluster, f"{CERTIFICATES_SEEN_BY_SERVER}/{APISERVER_ADDRESS_FILE}"),
    ]


def _proof_args(pods: Iterable[ClusterNetwork], kubeconfig: str) -> list[str]:
    """Bounds what agents may advertise by the node that they prove."""
    sizes = {
        network.cidr.version: network.host_prefix
        for network in sorted(pods, key=lambda network: network.host_prefix)
    }
    return [
        "--agent-identifier-proof=token",
        f"--agent-proof-kubeconfig={kubeconfig}",
        *(f"--node-cidr-mask-size-ipv{version}={size}" for version, size in sorted(sizes.items())),
    ]


def permanent_server_args(plan: PermanentPlan) -> list[str]:
    """Returns the arguments of a permanent proxy-server. The kubelet expands `$(NODE_NAME)`."""
    kubeconfig = f"{CERTIFICATES_SEEN_BY_SERVER}/{PurePosixPath(plan.paths.server_kubeconfig).name}"
    names_agents = plan.reviews_tokens or plan.prove_nodes
    return [
        *_listener_args(plan),
        "--server-id=$(NODE_NAME)",
        *(["--enable-lease-controller=true"] if plan.publishes_leases else []),
        *([f"--server-count={plan.server_count}"] if plan.server_count else []),
        *([f"--kubeconfig={kubeconfig}"] if plan.publishes_leases or plan.reviews_tokens else []),
        *([f"--agent-namespace={plan.agent_namespace}"] if names_agents else []),
        *([f"--agent-service-account={plan.agent_service_account}"] if names_agents else []),
        *(
            [f"--authentication-audience={plan.token_audience}"]
            if plan.reviews_tokens
            else [f"--cluster-ca-cert={CERTIFICATES_SEEN_BY_SERVER}/ca.crt"]
        ),
        *(_proof_args(plan.cluster_networks, kubeconfig) if plan.prove_nodes else []),
        "--proxy-strategies=destHost,cidr,defaultRoute",
        *_OUR_LIMITS,
    ]


def agent_args(plan: Plan, values: NodeValues) -> list[str]:
    """Returns the arguments of proxy-agent. The kubelet expands `$(NODE_NAME)` and the other variables."""
    tls, ports = CERTIFICATES_SEEN_BY_AGENT, plan.ports
    return [
        "--logtostderr=true",
        f"--proxy-server-host={values.server_hosts}",
        f"--proxy-server-port={ports.agent}",
        f"--ca-cert={tls}/ca.crt",
        f"--agent-cert={tls}/tls.crt",
        f"--agent-key={tls}/tls.key",
        "--agent-id=$(NODE_NAME)",
        f"--agent-identifiers={agent_identifiers(plan)}",
        # The kubelet probes the pod's address. In the host network, the port must not be public.
        *([f"--health-server-host={LOOPBACK}"] if plan.host_network else []),
        f"--health-server-port={ports.agent_health}",
        f"--admin-server-port={ports.agent_admin}",
        f"--admin-bind-address={LOOPBACK}",
        f"--keepalive-time={KEEPALIVE}",
        "--probe-interval=1s",
        "--sync-interval=1s",
        "--sync-interval-cap=10s",
        *(_our_agent_args(plan) if plan.image.is_ours else []),
    ]


def _our_agent_args(plan: Plan) -> list[str]:
    destinations = plan.agent_destinations
    return [
        f"--drain-timeout={AGENT_DRAIN_SECONDS}s",
        f"--service-account-token-path={TOKEN_SEEN_BY_AGENT}/token",
        *([f"--allow-destinations={','.join(destinations)}"] if destinations else []),
    ]


def agent_identifiers(plan: Plan) -> str:
    """Returns the destinations that an agent serves: its node, its node's pods, and as default route all.

    The node's pod network is written with the agent's pod address; the server clears the host bits.
    """
    family = plan.networks.families[0]
    parts = ["host=$(NODE_NAME)", f"ipv{family}=$(HOST_IP)"]
    prefixes = [network.host_prefix for network in plan.networks.cluster if network.cidr.version == family]
    if prefixes and not plan.host_network:
        # With several pod networks, the longest prefix, which never includes pods of another node.
        parts.append(f"cidr=$(POD_IP)/{max(prefixes)}")
    return "&".join([*parts, "default-route=true"])
