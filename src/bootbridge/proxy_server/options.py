"""The flags of the proxy-server as one frozen value, validated once.

Field names are flag names with underscores; durations are seconds. ``validate`` checks in upstream's order
and with upstream's texts; our own rules come last. The text is ``error.args[0]``; ``str(error)`` adds
the flag and the fix.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from bootbridge.errors import OperatorError
from bootbridge.options import (
    ProxyOptions,
    check_channel_size,
    check_log_format,
    check_profiling,
    check_stall_timeout,
    identity,
    quote,
    require_duration,
    require_file,
    require_key_pair,
    require_readable,
)

MODES = ("grpc", "http-connect")
STRATEGIES = ("default", "destHost", "defaultRoute", "cidr", "direct")

IDENTIFIER_PROOFS = ("none", "certificate", "token")
HOST_CHARS_MAX = 253

RESERVED_PORTS_BELOW = 1024
EPHEMERAL_PORTS_FROM = 49152
# sun_path holds 108 bytes on Linux, one of which ends the string.
SOCKET_PATH_BYTES_MAX = 107


@dataclass(frozen=True, kw_only=True)
class ServerOptions(ProxyOptions):
    """Every flag of the proxy-server."""

    server_cert: str = ""
    server_key: str = ""
    server_ca_cert: str = ""
    cluster_cert: str = ""
    cluster_key: str = ""
    cluster_ca_cert: str = ""
    mode: str = "grpc"
    uds_name: str = ""
    delete_existing_uds_file: bool = True
    server_port: int = 8090
    server_bind_address: str = ""
    agent_port: int = 8091
    agent_bind_address: str = ""
    health_port: int = 8092
    health_bind_address: str = ""
    admin_port: int = 8095
    frontend_keepalive_time: float = 3600.0
    server_id: str = field(default_factory=lambda: identity("PROXY_SERVER_ID"))
    server_count: int = 1
    agent_namespace: str = ""
    agent_service_account: str = ""
    authentication_audience: str = ""
    agent_token_issuer: tuple[str, ...] = ()
    kubeconfig_qps: float = 0.0
    kubeconfig_burst: int = 0
    proxy_strategies: str = "default"
    cipher_suites: tuple[str, ...] = ()
    tls_min_version: str = ""
    xfr_channel_size: int = 10
    frontend_write_channel_size: int = 10
    enable_lease_controller: bool = False
    lease_label: str = "k8s-app=konnectivity-server"
    graceful_shutdown_timeout: float = 0.0
    backend_dial_timeout: float = 0.0
    first_agent_timeout: float = 5.0
    warn_on_channel_limit: bool = True
    insecure_agents: bool = False
    direct_cidrs: tuple[str, ...] = ()
    agent_identifier_proof: str = "none"
    agent_cidrs: tuple[str, ...] = ()
    agent_hosts: tuple[str, ...] = ()
    agent_default_route: bool = True
    agent_proof_kubeconfig: str = ""
    node_cidr_mask_size_ipv4: int = 0
    node_cidr_mask_size_ipv6: int = 0
    agent_max_age: float = 0.0
    audit_log: str = ""

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies in the order in which they are tried."""
        return tuple(name for name in self.proxy_strategies.split(",") if name)

    @property
    def token_authentication(self) -> bool:
        """Whether agents authenticate by a service account token. With certificates it is only a proof."""
        if self.agent_identifier_proof == "token" and self.cluster_ca_cert:
            return False
        return bool(self.agent_namespace or self.agent_service_account or self.authentication_audience)

    @property
    def bounds_identifiers(self) -> bool:
        """Whether agents may not advertise arbitrary destinations."""
        return self.agent_identifier_proof != "none" or bool(self.agent_cidrs or self.agent_hosts)

    @property
    def routes_by_identifiers(self) -> bool:
        """Whether a strategy selects an agent by what it advertises."""
        return not {"destHost", "cidr", "defaultRoute"}.isdisjoint(self.strategies)

    @property
    def needs_kubernetes(self) -> bool:
        """Whether the server calls a kube-apiserver, for token reviews or leases."""
        return self.token_authentication or self.enable_lease_controller


def validate(options: ServerOptions) -> None:
    """Raises ``OperatorError`` for the first violated rule, upstream's rules first."""
    for rule in _UPSTREAM_RULES + _OWN_RULES:
        rule(options)


def warnings(options: ServerOptions) -> tuple[str, ...]:
    """Returns warnings about valid but risky or useless flags."""
    found = []
    if options.tls_min_version in ("VersionTLS10", "VersionTLS11"):
        found.append(f"--tls-min-version={options.tls_min_version} allows versions that RFC 8996 deprecates")
    if options.insecure_agents and not _authenticates(options):
        found.append("--insecure-agents: any client of the agent port can receive the apiserver's traffic")
    elif options.insecure_agents:
        found.append("--insecure-agents has no effect: agents are authenticated")
    return tuple(found)


def parse_labels(text: str) -> dict[str, str]:
    """Parses ``a=b,c=d``, without spaces around names and values."""
    from bootbridge.kube.labels import LabelError, parse_label_map

    try:
        return parse_label_map(text)
    except LabelError as error:
        raise OperatorError(str(error), subject="--lease-label", hint="write key=value,key=value") from error


def _authenticates(options: ServerOptions) -> bool:
    return bool(options.cluster_ca_cert) or options.token_authentication


def _frontend_certificates(options: ServerOptions) -> None:
    require_key_pair("server", options.server_key, options.server_cert)
    if path := options.server_ca_cert:
        require_file(path, f"error checking server CA cert {path}", "--server-ca-cert")


def _agent_certificates(options: ServerOptions) -> None:
    require_key_pair("cluster", options.cluster_key, options.cluster_cert)
    if path := options.cluster_ca_cert:
        require_file(path, f"error checking cluster CA cert {path}", "--cluster-ca-cert")


def _mode(options: ServerOptions) -> None:
    if options.mode not in MODES:
        text = f"mode must be set to either 'grpc' or 'http-connect' not {quote(options.mode)}"
        raise OperatorError(text, subject="--mode", hint="--mode=grpc or --mode=http-connect")


def _frontend_transport(options: ServerOptions) -> None:
    if not options.uds_name:
        if not options.server_ca_cert:
            text = "server ca cert must be set when in TCP mode (uds-name is empty)"
            hint = "set the CA of the kube-apiserver's certificate, or --uds-name=<socket> --server-port=0"
            raise OperatorError(text, subject="--server-ca-cert", hint=hint)
        return
    if options.server_port != 0:
        text = f"server port should be set to 0 not {options.server_port} for UDS"
        raise OperatorError(text, subject="--server-port", hint="add --server-port=0, or remove --uds-name")
    for name in ("key", "cert", "ca cert"):
        flag = f"server-{name.replace(' ', '-')}"
        if getattr(options, flag.replace("-", "_")):
            text = f"server {name} should not be set for UDS"
            raise OperatorError(text, subject=f"--{flag}", hint=f"remove --{flag}, or --uds-name for TCP")


def _ports(options: ServerOptions) -> None:
    sides = ("server", "agent", "admin", "health")
    hint = f"use a port from {RESERVED_PORTS_BELOW} to {EPHEMERAL_PORTS_FROM - 1}"
    for side in sides:
        port = getattr(options, f"{side}_port")
        if port >= EPHEMERAL_PORTS_FROM:
            text = f"please do not try to use ephemeral port {port} for the {side} port"
            raise OperatorError(text, subject=f"--{side}-port", hint=hint)
    for side in sides:
        port = getattr(options, f"{side}_port")
        if port < RESERVED_PORTS_BELOW and not (side == "server" and options.uds_name):
            text = f"please do not try to use reserved port {port} for the {side} port"
            raise OperatorError(text, subject=f"--{side}-port", hint=hint)


def _token_authentication(options: ServerOptions) -> None:
    if not options.token_authentication:
        return
    if options.cluster_ca_cert:
        text = "--cluster-ca-cert can not be used when agent authentication is enabled"
        hint = "remove it, or remove --agent-namespace, --agent-service-account and --authentication-audience"
        raise OperatorError(text, hint=hint)
    for flag in ("agent-namespace", "agent-service-account", "authentication-audience"):
        if not getattr(options, flag.replace("-", "_")):
            text = f"--{flag} cannot be empty when agent authentication is enabled"
            raise OperatorError(text, hint="set all three token flags")


def _token_issuers(options: ServerOptions) -> None:
    if options.agent_token_issuer and not options.token_authentication:
        text = "--agent-token-issuer has no effect without token authentication"
        hint = "set --agent-namespace, --agent-service-account and --authentication-audience, or remove it"
        raise OperatorError(text, hint=hint)


def _kubeconfig(options: ServerOptions) -> None:
    if path := options.kubeconfig:
        require_file(path, f"checking KubeconfigPath {quote(path)}", "--kubeconfig")


def _strategies(options: ServerOptions) -> None:
    hint = f"a comma separated list of: {', '.join(STRATEGIES)}"
    if not options.proxy_strategies:
        raise OperatorError("ProxyStrategies cannot be empty", subject="--proxy-strategies", hint=hint)
    for name in options.strategies:
        if name not in STRATEGIES:
            text = f"invalid proxy strategies: unknown proxy strategy: {name}"
            raise OperatorError(text, subject="--proxy-strategies", hint=hint)
    if not options.strategies:
        text = "invalid proxy strategies: proxy strategies cannot be empty"
        raise OperatorError(text, subject="--proxy-strategies", hint=hint)


def _channel_sizes(options: ServerOptions) -> None:
    check_channel_size(options)
    if options.frontend_write_channel_size < 0:
        text = f"--frontend-write-channel-size must be >= 0, got {options.frontend_write_channel_size}"
        raise OperatorError(text, hint="omit it for the default")


def _tls(options: ServerOptions) -> None:
    if options.tls_min_version or options.cipher_suites:
        # Imported here: most servers set neither, and --help does not need ssl.
        from bootbridge.runtime.tls_files import TlsPolicy

        TlsPolicy.from_flags(options.tls_min_version, options.cipher_suites)


def _lease_label(options: ServerOptions) -> None:
    if options.enable_lease_controller:
        parse_labels(options.lease_label)


def _timeouts(options: ServerOptions) -> None:
    require_duration(options.graceful_shutdown_timeout, "graceful-shutdown-timeout")
    require_duration(options.backend_dial_timeout, "backend-dial-timeout")
    require_duration(options.first_agent_timeout, "first-agent-timeout")


def _agent_max_age(options: ServerOptions) -> None:
    require_duration(options.agent_max_age, "agent-max-age")


def _socket_path(options: ServerOptions) -> None:
    length = len(os.fsencode(options.uds_name))
    if length > SOCKET_PATH_BYTES_MAX:
        text = f"socket path too long: {length} bytes, the maximum is {SOCKET_PATH_BYTES_MAX}"
        raise OperatorError(text, subject="--uds-name", hint="choose a shorter path")


def _direct_strategy(options: ServerOptions) -> None:
    listed = "direct" in options.strategies
    if listed and not options.direct_cidrs:
        text = "--direct-cidrs is required with the strategy 'direct'"
        raise OperatorError(text, hint="for example --direct-cidrs=10.0.0.0/24,fd00::/64")
    if options.direct_cidrs and not listed:
        text = "--direct-cidrs has no effect unless --proxy-strategies lists 'direct'"
        raise OperatorError(text, hint=f"--proxy-strategies={options.proxy_strategies},direct")


def _direct_cidrs(options: ServerOptions) -> None:
    if not options.direct_cidrs:
        return
    _require_cidrs("--direct-cidrs", options.direct_cidrs)


def _require_cidrs(flag: str, cidrs: tuple[str, ...]) -> None:
    """By the parser that the server uses them with: what it rejects would be ignored."""
    from bootbridge.wire.addresses import parse_cidr, parse_ip

    for cidr in cidrs:
        if parse_cidr(cidr) is None:
            ip = None if "%" in cidr else parse_ip(cidr)
            text = f"invalid CIDR {quote(cidr)}"
            hint = f"write {ip}/{ip.max_prefixlen}" if ip else "for example 10.0.0.0/24 or fd00::/64"
            raise OperatorError(text, subject=flag, hint=hint)


def _agent_identifiers(options: ServerOptions) -> None:
    if options.agent_cidrs:
        _require_cidrs("--agent-cidrs", options.agent_cidrs)
    for host in options.agent_hosts:
        name = host.removeprefix("*.")
        if host != "*" and (not name or "*" in name or len(name) > HOST_CHARS_MAX):
            text, hint = f"invalid host name {quote(host)}", "for example node1, *.example.com or *"
            raise OperatorError(text, subject="--agent-hosts", hint=hint)
    proof = options.agent_identifier_proof
    if proof not in IDENTIFIER_PROOFS:
        text, hint = f"unknown value {quote(proof)}", f"one of: {', '.join(IDENTIFIER_PROOFS)}"
        raise OperatorError(text, subject="--agent-identifier-proof", hint=hint)
    if proof == "certificate" and not options.cluster_ca_cert:
        text = "--cluster-ca-cert is required with the proof 'certificate'"
        hint = "set the CA of the agents' certificates"
        raise OperatorError(text, subject="--agent-identifier-proof", hint=hint)
    if proof == "token":
        for flag in ("agent-namespace", "agent-service-account", "agent-proof-kubeconfig"):
            if not getattr(options, flag.replace("-", "_")):
                text = f"--{flag} is required with the proof 'token'"
                hint = (
                    "name the agents' service account, and a kubeconfig with address and CA of the apiserver"
                )
                raise OperatorError(text, subject="--agent-identifier-proof", hint=hint)
    for version, bits in ((4, 32), (6, 128)):
        size = getattr(options, f"node_cidr_mask_size_ipv{version}")
        if not 0 <= size <= bits:
            text, hint = f"invalid prefix length {size}", f"0 to {bits}"
            raise OperatorError(text, subject=f"--node-cidr-mask-size-ipv{version}", hint=hint)


def _destinations(options: ServerOptions) -> None:
    if options.allow_destinations or options.deny_destinations:
        # Imported here: --help does not need it.
        from bootbridge.runtime.destination_policy import DestinationPolicy

        DestinationPolicy(options.allow_destinations, options.deny_destinations)


def _direct_cidrs_are_permitted(options: ServerOptions) -> None:
    """A network that is refused by default could never be dialled."""
    if not options.direct_cidrs:
        return
    from bootbridge.runtime.destination_policy import ALLOW_FLAG, parse_rules, refused_range
    from bootbridge.wire.addresses import parse_cidr

    allowed = [rule.network for rule in parse_rules(options.allow_destinations, ALLOW_FLAG)]
    for cidr in [found for found in map(parse_cidr, options.direct_cidrs) if found]:
        refused = refused_range(cidr)
        if refused is None or any(each.overlaps(cidr) for each in allowed if refused_range(each) == refused):
            continue
        text = f"{cidr} is refused by default"
        hint = f"add {ALLOW_FLAG}={cidr} to permit it"
        raise OperatorError(text, subject="--direct-cidrs", hint=hint)


def _frontend_identity(options: ServerOptions) -> None:
    if not options.uds_name and not options.server_cert:
        text = "--server-cert and --server-key are required in TCP mode: the port always uses TLS"
        raise OperatorError(text, hint="set both, or --uds-name=<socket> with --server-port=0")


def _agent_listener_identity(options: ServerOptions) -> None:
    if not options.cluster_cert:
        text = "--cluster-cert and --cluster-key are required: the agent port always uses TLS"
        raise OperatorError(text, hint="set the certificate and key of the agent port")


def _agents_are_authenticated(options: ServerOptions) -> None:
    if _authenticates(options) or options.insecure_agents:
        return
    text = "agents are not authenticated: neither --cluster-ca-cert nor token authentication is set"
    hint = (
        "set --cluster-ca-cert=<CA of the agents' certificates>, or --agent-namespace, "
        "--agent-service-account and --authentication-audience, or accept it with --insecure-agents"
    )
    raise OperatorError(text, hint=hint)


def _files_are_readable(options: ServerOptions) -> None:
    for flag in (
        "server-key", "server-cert", "server-ca-cert",
        "cluster-key", "cluster-cert", "cluster-ca-cert", "kubeconfig",
    ):  # fmt: skip
        require_readable(getattr(options, flag.replace("-", "_")), f"--{flag}")


_UPSTREAM_RULES = (
    _frontend_certificates,
    _agent_certificates,
    _mode,
    _frontend_transport,
    _ports,
    check_profiling,
    _token_authentication,
    _kubeconfig,
    _strategies,
    _channel_sizes,
    _tls,
    _lease_label,
    _timeouts,
)

_OWN_RULES = (
    check_log_format,
    check_stall_timeout,
    _socket_path,
    _token_issuers,
    _direct_strategy,
    _direct_cidrs,
    _destinations,
    _direct_cidrs_are_permitted,
    _agent_identifiers,
    _agent_max_age,
    _frontend_identity,
    _agent_listener_identity,
    _agents_are_authenticated,
    _files_are_readable,
)
