"""The command lines of server and agent, for the image that the plan names.

The release payload's originals get only what every release from 4.11 on understands;
ours get more: routing by CIDR, direct dials into the machine networks while no agent is
there yet, TLS 1.3 alone, and orderly ends.
"""

from __future__ import annotations

from bootbridge.bootstrap.machine.node_values import NodeValues
from bootbridge.bootstrap.plan.plan import Plan

CERTIFICATES_SEEN_BY_SERVER = "/etc/konnectivity"
CERTIFICATES_SEEN_BY_AGENT = "/etc/konnectivity"
LOOPBACK = "127.0.0.1"
KEEPALIVE = "30s"
# SIGTERM, then this long for running connections; the pod's grace period is a little longer.
SERVER_DRAIN_SECONDS = 10
AGENT_DRAIN_SECONDS = 25


def server_args(plan: Plan) -> list[str]:
    """For proxy-server: kube-apiserver on the unix socket, agents by client certificate."""
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
        f"--cluster-ca-cert={tls}/ca.crt",
        f"--health-port={ports.server_health}",
        f"--health-bind-address={LOOPBACK}",
        f"--admin-port={ports.server_admin}",
        f"--admin-bind-address={LOOPBACK}",
        f"--keepalive-time={KEEPALIVE}",
        f"--frontend-keepalive-time={KEEPALIVE}",
        *(_our_server_args(plan) if plan.image.is_ours else ["--proxy-strategies=destHost,defaultRoute"]),
    ]


def _our_server_args(plan: Plan) -> list[str]:
    # Kubelets are reached directly until there is an agent: logs and exec work from the first minute.
    return [
        "--proxy-strategies=destHost,cidr,defaultRoute,direct",
        f"--direct-cidrs={','.join(map(str, plan.networks.machine))}",
        "--tls-min-version=VersionTLS13",
        f"--graceful-shutdown-timeout={SERVER_DRAIN_SECONDS}s",
    ]


def agent_args(plan: Plan, values: NodeValues) -> list[str]:
    """For proxy-agent; `$(NODE_NAME)` and its like are filled in by the kubelet."""
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
        # In a pod the kubelet probes the pod's address; on the host nobody else shall see the port.
        *([f"--health-server-host={LOOPBACK}"] if plan.host_network else []),
        f"--health-server-port={ports.agent_health}",
        f"--admin-server-port={ports.agent_admin}",
        f"--admin-bind-address={LOOPBACK}",
        f"--keepalive-time={KEEPALIVE}",
        "--probe-interval=1s",
        "--sync-interval=1s",
        "--sync-interval-cap=10s",
        *([f"--drain-timeout={AGENT_DRAIN_SECONDS}s"] if plan.image.is_ours else []),
    ]


def agent_identifiers(plan: Plan) -> str:
    """What an agent stands for: its node by name and address, the pods beside it, and all else.

    A node's share of the pod network is spelled with the agent's own pod address; whoever
    reads it clears the host bits.
    """
    family = plan.networks.families[0]
    parts = ["host=$(NODE_NAME)", f"ipv{family}=$(HOST_IP)"]
    prefixes = [network.host_prefix for network in plan.networks.cluster if network.cidr.version == family]
    if prefixes and not plan.host_network:
        # Of several pod networks the smallest share: it never claims a neighbour's pods.
        parts.append(f"cidr=$(POD_IP)/{max(prefixes)}")
    return "&".join([*parts, "default-route=true"])
