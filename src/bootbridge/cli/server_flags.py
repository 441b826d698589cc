"""The flags of the proxy-server, grouped by what an operator wants to do."""

from __future__ import annotations

from bootbridge.cli.logging_flags import LOGGING
from bootbridge.cli.pflags import FLOAT, Flag, FlagSet
from bootbridge.proxy_server.options import ServerOptions

SYNOPSIS = (
    "Lets a kube-apiserver reach addresses that only cluster nodes can reach: agents dial out to this "
    "server, the apiserver asks it for a connection, and an agent makes it."
)

EXAMPLES = """
    # The apiserver on a unix socket, agents known by their client certificate
    {program} --uds-name=/run/konnectivity/server.sock --server-port=0 --mode=http-connect \\
        --cluster-cert=server.crt --cluster-key=server.key --cluster-ca-cert=agents-ca.crt

    # Agents known by their service account token
    {program} --uds-name=/run/konnectivity/server.sock --server-port=0 \\
        --cluster-cert=server.crt --cluster-key=server.key --kubeconfig=server.conf \\
        --agent-namespace=kube-system --agent-service-account=konnectivity-agent \\
        --authentication-audience=system:konnectivity-server

    # The apiserver over TCP with mutual TLS
    {program} --server-cert=front.crt --server-key=front.key --server-ca-cert=apiserver-ca.crt \\
        --cluster-cert=server.crt --cluster-key=server.key --cluster-ca-cert=agents-ca.crt
"""

_FRONTEND = (
    Flag("mode", "What the apiserver speaks: 'grpc' or 'http-connect'."),
    Flag("uds-name", "Path of the unix socket for the apiserver, at most 107 bytes. Empty means TCP."),
    Flag("delete-existing-uds-file", "Remove a socket left at --uds-name before listening there."),
    Flag("server-port", "Port for the apiserver. Must be 0 with --uds-name."),
    Flag("server-bind-address", "Address for --server-port. Empty means all."),
    Flag("server-cert", "Certificate shown to the apiserver (TCP only)."),
    Flag("server-key", "Key of --server-cert."),
    Flag("server-ca-cert", "CA of the apiserver's client certificate. Required with TCP."),
    Flag("frontend-keepalive-time", "Idle time after which a gRPC frontend is pinged."),
    Flag(
        "frontend-write-channel-size",
        "Writes that may wait for one HTTP CONNECT frontend. Nobody waits for a slow one here whatever "
        "the number, so 0 is taken as well.",
    ),
)

_AGENTS = (
    Flag("agent-port", "Port that agents dial. Always TLS."),
    Flag("agent-bind-address", "Address for --agent-port. Empty means all."),
    Flag("cluster-cert", "Certificate shown to agents. Required."),
    Flag("cluster-key", "Key of --cluster-cert. Required."),
    Flag("cluster-ca-cert", "CA of the agents' client certificates; agents without one are refused."),
    Flag("insecure-agents", "Start although agents are not authenticated: anyone may become one."),
    Flag("keepalive-time", "Idle time after which an agent is pinged."),
    Flag("server-id", "Name told to agents.", default_text="$PROXY_SERVER_ID or a random UUID"),
    Flag("server-count", "Number of servers, told to agents so that they connect to all."),
)

_TOKENS = (
    Flag("agent-namespace", "Namespace that the token of an agent must come from."),
    Flag("agent-service-account", "Service account that the token of an agent must belong to."),
    Flag("authentication-audience", "Audience that the token of an agent must be meant for."),
    Flag("kubeconfig", "How to reach the apiserver for token reviews and leases. Empty: as a pod does."),
    Flag("kubeconfig-qps", "Requests per second to that apiserver; 0 means 5.", FLOAT),
    Flag("kubeconfig-burst", "Requests at once to that apiserver; 0 means 10."),
    Flag("kube-api-content-type", "Content type preferred by that apiserver."),
)

_ROUTING = (
    Flag(
        "proxy-strategies",
        "Comma separated, asked in order. default: any agent. destHost: the agent that names the "
        "destination. defaultRoute: agents that offer one. cidr: the agent whose CIDR holds the destination, "
        "the longest prefix first. direct: dial from this host, inside --direct-cidrs only.",
    ),
    Flag("direct-cidrs", "IPv4 and IPv6 networks that the strategy 'direct' may dial."),
)

_LIMITS = (
    Flag(
        "backend-dial-timeout",
        "How long an agent may take to answer a dial. 0 sets no limit of yours; a dial that is still "
        "pending after 30s fails even then.",
    ),
    Flag(
        "stall-timeout",
        "How long a connection may stay stalled towards a peer that grants no credit, before it "
        "alone is closed.",
    ),
    Flag("graceful-shutdown-timeout", "How long running connections may go on after SIGTERM. 0: not at all."),
    Flag("xfr-channel-size", "Accepted, without effect: queues are bounded in bytes."),
)

_TLS = (
    Flag("tls-min-version", "Oldest TLS taken: VersionTLS10 to VersionTLS13. Empty means VersionTLS12."),
    Flag("cipher-suites", "Suites allowed for TLS 1.2 and older, by their Go names. Empty: a safe choice."),
)

_LEASES = (
    Flag("enable-lease-controller", "Publish this server as a Lease, and collect leases that ran out."),
    Flag("lease-namespace", "Namespace of the leases."),
    Flag("lease-label", "Labels of the leases: key=value,key=value."),
)

_WATCHING = (
    Flag("health-port", "Port for /healthz, /readyz, /status and /metrics."),
    Flag("health-bind-address", "Address for --health-port. Empty means all."),
    Flag("admin-port", "Port for /metrics and profiles."),
    Flag("admin-bind-address", "Address for --admin-port. Empty means all."),
    Flag("enable-profiling", "Offer profiles under /debug/pprof on the admin port."),
    Flag("enable-contention-profiling", "Offer contention profiles too. Needs --enable-profiling."),
    Flag("warn-on-channel-limit", "", deprecated="it is always on and the flag does nothing"),
)

FLAGS = FlagSet(
    ServerOptions,
    (
        ("Frontend, where the kube-apiserver comes in", _FRONTEND),
        ("Agents, and who may be one", _AGENTS),
        ("Agents known by token", _TOKENS),
        ("Routing", _ROUTING),
        ("Limits", _LIMITS),
        ("TLS of both listeners", _TLS),
        ("Leases", _LEASES),
        ("Health, metrics, profiles", _WATCHING),
        ("Logs", LOGGING),
    ),
)
