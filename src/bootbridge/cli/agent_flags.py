"""The flags of the proxy-agent, in the groups of its help page."""

from __future__ import annotations

from bootbridge.cli.logging_flags import LOGGING
from bootbridge.cli.pflags import Flag, FlagSet, FlagType
from bootbridge.options import quote
from bootbridge.proxy_agent.options import AgentOptions

SYNOPSIS = (
    "Runs where pods are reachable, connects to every proxy-server, and dials the endpoints that the "
    "kube-apiserver requests. It opens no port for traffic."
)

EXAMPLES = """
    # With a client certificate
    {program} --proxy-server-host=10.0.0.5 --ca-cert=ca.crt \\
        --agent-cert=agent.crt --agent-key=agent.key

    # With a service account token, for the destinations that it lists
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
    Flag("proxy-server-host", "Host names or addresses of the servers, comma separated or repeated."),
    Flag("proxy-server-port", "Port of the servers."),
    Flag("ca-cert", "CA of the servers' certificates. Empty means the system's roots."),
    Flag("agent-cert", "Client certificate for the servers."),
    Flag("agent-key", "Key of --agent-cert."),
    Flag("service-account-token-path", "File with the service account token, read at each connect."),
    Flag("alpn-proto", "ALPN protocols offered before h2, for servers that share a port."),
    Flag("keepalive-time", "Idle time after which the agent pings a server."),
)

_IDENTITY = (
    Flag("agent-id", "ID of this agent.", default_text="$PROXY_AGENT_ID or a random UUID"),
    Flag(
        "agent-identifiers",
        "Destinations that this agent can reach, as a URL query with the keys ipv4, ipv6, host, cidr and "
        "default-route, each repeatable: host=node1&ipv4=10.0.0.7&default-route=true",
    ),
)

_DESTINATIONS = (
    Flag(
        "allow-destinations",
        "Addresses that this agent may dial, after name resolution: CIDRs with optional ports, comma "
        "separated or repeated: 10.0.0.0/8,10.1.0.0/16:443,[fd00::/8]:1-1024. Empty means all that are not "
        "refused by default. Loopback, link-local, multicast and metadata addresses are refused unless a "
        "CIDR inside their range is listed: 127.0.0.0/8 permits loopback, 0.0.0.0/0 does not.",
    ),
    Flag(
        "deny-destinations",
        "Addresses that this agent refuses. Takes precedence over --allow-destinations.",
    ),
)

_SYNC = (
    Flag("sync-interval", "Initial interval of the check that all servers are connected."),
    Flag("sync-interval-cap", "Maximum interval of that check after failures."),
    Flag("probe-interval", "Accepted, without effect: a lost connection is detected at once."),
    Flag("sync-forever", "Continue the check after all servers are connected, to find new ones."),
    Flag("count-server-leases", "Count the servers by their leases."),
    Flag("lease-namespace", "Namespace of the leases."),
    Flag("lease-label-selector", "Label selector of the leases. Empty means all.", _SELECTOR),
    Flag(
        "lease-label",
        "",
        _SELECTOR,
        into="lease_label_selector",
        deprecated="use --lease-label-selector instead",
    ),
    Flag(
        "server-count-source",
        "Source of the number of servers. 'default': the leases if they are counted, else the servers' "
        "--server-count. 'max': the larger of both.",
        choices=("default", "max"),
    ),
    Flag("kubeconfig", "Kubeconfig for leases. Empty: the pod's service account."),
    Flag("kube-api-content-type", "Accepted, without effect: requests are JSON."),
)

_LIMITS = (
    Flag("drain-timeout", "How long open connections may continue after SIGTERM."),
    Flag(
        "stall-timeout",
        "Timeout of a connection that is stalled because its peer grants no credit. Only that connection "
        "is closed.",
    ),
    Flag("xfr-channel-size", "Accepted, without effect: queues are bounded in bytes."),
    Flag("warn-on-channel-limit", "Accepted, without effect: see the metric stalled_seconds_total."),
)

_WATCHING = (
    Flag("health-server-port", "Port for /healthz, /readyz and /metrics."),
    Flag("health-server-host", "Address for --health-server-port. Empty means all."),
    Flag(
        "admin-server-port",
        "Port for the status page, /status and profiling; redirects /metrics to the health port.",
    ),
    Flag("admin-bind-address", "Address for --admin-server-port. Empty means all."),
    Flag("enable-profiling", "Serve profiles under /debug/pprof on the admin port."),
    Flag("enable-contention-profiling", "Serve contention profiles too. Requires --enable-profiling."),
)

FLAGS = FlagSet(
    AgentOptions,
    (
        ("Servers and authentication", _SERVERS),
        ("This agent", _IDENTITY),
        ("Destinations", _DESTINATIONS),
        ("Connections to all servers", _SYNC),
        ("Limits", _LIMITS),
        ("Health, metrics, profiling", _WATCHING),
        ("Logging", LOGGING),
    ),
)
