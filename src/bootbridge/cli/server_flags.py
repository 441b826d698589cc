"""The flags of the proxy-server, in the groups of its help page."""

from __future__ import annotations

from bootbridge.cli.logging_flags import LOGGING
from bootbridge.cli.pflags import FLOAT, Flag, FlagSet
from bootbridge.proxy_server.options import ServerOptions

SYNOPSIS = (
    "Lets a kube-apiserver reach addresses that only cluster nodes can reach: agents connect to this "
    "server, and dial the endpoints that the apiserver requests."
)

EXAMPLES = """
    # The apiserver on a unix socket, agents with client certificates
    {program} --uds-name=/run/konnectivity/server.sock --server-port=0 --mode=http-connect \\
        --cluster-cert=server.crt --cluster-key=server.key --cluster-ca-cert=agents-ca.crt

    # Agents with service account tokens
    {program} --uds-name=/run/konnectivity/server.sock --server-port=0 \\
        --cluster-cert=server.crt --cluster-key=server.key --kubeconfig=server.conf \\
        --agent-namespace=kube-system --agent-service-account=konnectivity-agent \\
        --authentication-audience=system:konnectivity-server

    # The apiserver over TCP with mutual TLS
    {program} --server-cert=front.crt --server-key=front.key --server-ca-cert=apiserver-ca.crt \\
        --cluster-cert=server.crt --cluster-key=server.key --cluster-ca-cert=agents-ca.crt
"""

_FRONTEND = (
    Flag("mode", "Protocol of the apiserver: 'grpc' or 'http-connect'.", choices=("grpc", "http-connect")),
    Flag("uds-name", "Path of the unix socket for the apiserver, at most 107 bytes. Empty means TCP."),
    Flag("delete-existing-uds-file", "Remove an existing socket at --uds-name before listening."),
    Flag("server-port", "Port for the apiserver. Must be 0 with --uds-name."),
    Flag("server-bind-address", "Address for --server-port. Empty means all."),
    Flag("server-cert", "Server certificate for the apiserver (TCP only)."),
    Flag("server-key", "Key of --server-cert."),
    Flag("server-ca-cert", "CA of the apiserver's client certificate. Required with TCP."),
    Flag("frontend-keepalive-time", "Idle time after which the server pings a gRPC frontend."),
    Flag(
        "frontend-write-channel-size",
        "Accepted, without effect: queues are bounded in bytes, and a slow frontend delays no other. 0 is "
        "valid too.",
    ),
)

_AGENTS = (
    Flag("agent-port", "Port for agents. Always TLS."),
    Flag("agent-bind-address", "Address for --agent-port. Empty means all."),
    Flag("cluster-cert", "Server certificate for agents. Required."),
    Flag("cluster-key", "Key of --cluster-cert. Required."),
    Flag("cluster-ca-cert", "CA of the agents' client certificates; agents without one are rejected."),
    Flag(
        "agent-max-age",
        "Age at which an agent has to connect again, with its present credentials. 0: when its certificate "
        "or token expires, or its CA is removed from --cluster-ca-cert.",
    ),
    Flag("insecure-agents", "Start without authentication of agents: any client can become an agent."),
    Flag("keepalive-time", "Idle time after which the server pings an agent."),
    Flag(
        "server-id",
        "ID of this server.",
        default_text="$PROXY_SERVER_ID or a random UUID",
    ),
    Flag("server-count", "Number of servers; agents connect to that many."),
)

_TOKENS = (
    Flag("agent-namespace", "Required namespace of agents' tokens."),
    Flag("agent-service-account", "Required service account of agents' tokens."),
    Flag("authentication-audience", "Required audience of agents' tokens."),
    Flag(
        "agent-token-issuer",
        "Issuers of agents' tokens, as in the kube-apiserver's --service-account-issuer, comma separated or "
        "repeated. Tokens of others are refused without a review. Empty means any.",
    ),
    Flag("kubeconfig", "Kubeconfig for token reviews and leases. Empty: the pod's service account."),
    Flag("kubeconfig-qps", "Requests per second to the apiserver; 0 means 5.", FLOAT),
    Flag("kubeconfig-burst", "Burst of requests to the apiserver; 0 means 10."),
    Flag("kube-api-content-type", "Accepted, without effect: requests are JSON."),
)

_ROUTING = (
    Flag(
        "proxy-strategies",
        "Comma separated, tried in order. default: any agent. destHost: an agent with that host or "
        "address. defaultRoute: agents with a default route. cidr: agents whose CIDR contains the "
        "destination, longest prefix first. direct: dial from this host, inside --direct-cidrs only.",
    ),
    Flag(
        "agent-identifier-proof",
        "What an agent must prove of the hosts, addresses and CIDRs that it advertises; others are ignored. "
        "none: nothing, as the original does. certificate: they are in its client certificate, as DNS name, "
        "IP address, or URI cidr:10.1.2.0/24. token: they are those of its pod's node, which its service "
        "account token shows; the token must be valid for the apiserver and allow to get that pod.",
    ),
    Flag(
        "agent-proof-kubeconfig",
        "Kubeconfig with address and CA of the apiserver, for the proof 'token'. Its user is not used. The "
        "file may appear later.",
    ),
    Flag(
        "node-cidr-mask-size-ipv4",
        "Prefix length of a node's share of the pod network, for the proof 'token'. 0: the agent's pod only.",
    ),
    Flag("node-cidr-mask-size-ipv6", "The same for IPv6."),
    Flag("agent-cidrs", "CIDRs inside which agents may advertise addresses and CIDRs; others are ignored."),
    Flag(
        "agent-hosts",
        "Host names that agents may advertise; *.example.com allows all names below it. Others are ignored "
        "if this or --agent-cidrs is set.",
    ),
    Flag("agent-default-route", "Let agents advertise default-route=true."),
    Flag("direct-cidrs", "IPv4 and IPv6 CIDRs that the strategy 'direct' may dial."),
    Flag(
        "allow-destinations",
        "Addresses that the strategy 'direct' may dial, as for the proxy-agent. Empty means all that are not "
        "refused by default.",
    ),
    Flag(
        "deny-destinations",
        "Addresses that the strategy 'direct' refuses. Takes precedence over --allow-destinations.",
    ),
)

_LIMITS = (
    Flag(
        "backend-dial-timeout",
        "Timeout of a dial by an agent. 0 means 30s.",
    ),
    Flag(
        "first-agent-timeout",
        "How long after the start of this server a dial waits for an agent, since agents need a moment to "
        "find it. Later, or with 0, a dial without an agent fails at once.",
    ),
    Flag(
        "stall-timeout",
        "Timeout of a connection that is stalled because its peer grants no credit. Only that connection "
        "is closed.",
    ),
    Flag(
        "graceful-shutdown-timeout",
        "How long open connections may continue after SIGTERM.",
    ),
    Flag("xfr-channel-size", "Accepted, without effect: queues are bounded in bytes."),
)

_TLS = (
    Flag("tls-min-version", "Minimum TLS version: VersionTLS10 to VersionTLS13. Empty means VersionTLS12."),
    Flag(
        "cipher-suites",
        "Cipher suites for TLS 1.2 and older, by their Go names. Empty: a secure set.",
    ),
)

_LEASES = (
    Flag("enable-lease-controller", "Publish this server as a Lease, and delete expired leases."),
    Flag("lease-namespace", "Namespace of the leases."),
    Flag("lease-label", "Labels of the leases: key=value,key=value."),
)

_WATCHING = (
    Flag("health-port", "Port for /healthz, /readyz and /metrics."),
    Flag("health-bind-address", "Address for --health-port. Empty means all."),
    Flag("admin-port", "Port for the status page, /status, /metrics and profiling."),
    Flag("admin-bind-address", "Address for --admin-port. Empty means all."),
    Flag(
        "audit-log",
        "File for one JSON line per dial, written when it has ended; - is stdout. Reopened when the file was "
        "renamed, and on SIGHUP. `bootbridge schema audit` describes it. Empty: none.",
    ),
    Flag("enable-profiling", "Serve profiles under /debug/pprof on the admin port."),
    Flag("enable-contention-profiling", "Serve contention profiles too. Requires --enable-profiling."),
    Flag("warn-on-channel-limit", "", deprecated="it is always on and the flag does nothing"),
)

FLAGS = FlagSet(
    ServerOptions,
    (
        ("Frontend (kube-apiserver)", _FRONTEND),
        ("Agents", _AGENTS),
        ("Token authentication of agents", _TOKENS),
        ("Routing", _ROUTING),
        ("Limits", _LIMITS),
        ("TLS of both listeners", _TLS),
        ("Leases", _LEASES),
        ("Health, metrics, profiling", _WATCHING),
        ("Logging", LOGGING),
    ),
)
