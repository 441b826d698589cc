"""The flags of the proxy-agent, grouped by what an operator wants to do."""

from __future__ import annotations

from bootbridge.cli.logging_flags import LOGGING
from bootbridge.cli.pflags import Flag, FlagSet, FlagType
from bootbridge.options import quote
from bootbridge.proxy_agent.options import AgentOptions

SYNOPSIS = (
    "Runs where the pods can be reached, dials out to every proxy-server, and makes the connections that "
    "the kube-apiserver asks for through them. It opens no port for traffic."
)

EXAMPLES = """
    # Known to the server by a client certificate
    {program} --proxy-server-host=10.0.0.5 --ca-cert=ca.crt \\
        --agent-cert=agent.crt --agent-key=agent.key

    # Known by its service account token, serving the destinations it names
    {program} --proxy-server-host=konnectivity.example --proxy-server-port=8132 \\
        --ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt \\
        --service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token \\
        --agent-identifiers='host=node1&ipv4=10.0.0.7&cidr=10.128.2.0/23'

    # Several servers
    {program} --proxy-server-host=10.0.0.5,10.0.0.6,fd00::7 --ca-cert=ca.crt
"""


def _selector(text: str) -> str:
    # Imported here: only agents with this flag need it.
    from bootbridge.kube.labels import is_label_selector

    if not is_label_selector(text):
        raise ValueError("invalid label selector")
    return text


_SELECTOR = FlagType("selector", _selector, quote, fix="write key=value,key=value or key in (a,b)")

_SERVERS = (
    Flag("proxy-server-host", "Names or addresses, comma separated or repeated; all are tried."),
    Flag("proxy-server-port", "Port of the servers."),
    Flag("ca-cert", "CA of the servers' certificates. Empty means the system's roots."),
    Flag("agent-cert", "Client certificate shown to the servers."),
    Flag("agent-key", "Key of --agent-cert."),
    Flag("service-account-token-path", "File with the token to show, read anew at each connect."),
    Flag("alpn-proto", "ALPN names offered before h2, for servers that share a port."),
    Flag("keepalive-time", "Idle time after which a server is pinged."),
)

_IDENTITY = (
    Flag("agent-id", "Name of this agent.", default_text="$PROXY_AGENT_ID or a random UUID"),
    Flag(
        "agent-identifiers",
        "What this agent can reach, as a URL query with the keys ipv4, ipv6, host, cidr and "
        "default-route, each repeatable: host=node1&ipv4=10.0.0.7&default-route=true",
    ),
)

_SYNC = (
    Flag("sync-interval", "First pause between two looks whether all servers are connected."),
    Flag("sync-interval-cap", "Longest such pause after failures."),
    Flag("probe-interval", "Accepted, without effect: a lost connection is noticed at once."),
    Flag("sync-forever", "Keep looking after all servers are connected, so that new ones are found."),
    Flag("count-server-leases", "Learn the number of servers from their leases."),
    Flag("lease-namespace", "Namespace of the leases."),
    Flag("lease-label-selector", "Which leases count. Empty means all.", _SELECTOR),
    Flag(
        "lease-label",
        "",
        _SELECTOR,
        into="lease_label_selector",
        deprecated="use --lease-label-selector instead",
    ),
    Flag(
        "server-count-source",
        "'default' takes the number from the leases if they are counted, else from the servers; "
        "'max' takes the larger.",
    ),
    Flag("kubeconfig", "How to reach the apiserver for leases. Empty: as a pod does."),
    Flag("kube-api-content-type", "Content type preferred by that apiserver."),
)

_LIMITS = (
    Flag("drain-timeout", "How long running connections may go on after SIGTERM."),
    Flag(
        "stall-timeout",
        "How long a connection may stay stalled towards a peer that grants no credit, before it "
        "alone is closed.",
    ),
    Flag("xfr-channel-size", "Accepted, without effect: queues are bounded in bytes."),
    Flag("warn-on-channel-limit", "Accepted, without effect: see the metric stalled_seconds_total."),
)

_WATCHING = (
    Flag("health-server-port", "Port for /healthz, /readyz, /status and /metrics."),
    Flag("health-server-host", "Address for --health-server-port. Empty means all."),
    Flag("admin-server-port", "Port for profiles; sends /metrics to the health port."),
    Flag("admin-bind-address", "Address for --admin-server-port. Empty means all."),
    Flag("enable-profiling", "Offer profiles under /debug/pprof on the admin port."),
    Flag("enable-contention-profiling", "Offer contention profiles too. Needs --enable-profiling."),
)

FLAGS = FlagSet(
    AgentOptions,
    (
        ("Servers, and how to be known there", _SERVERS),
        ("This agent", _IDENTITY),
        ("Keeping connected to every server", _SYNC),
        ("Limits", _LIMITS),
        ("Health, metrics, profiles", _WATCHING),
        ("Logs", LOGGING),
    ),
)
