"""What the operator asked the proxy-server for: one frozen value, checked once.

Field names are flag names with underscores; durations are seconds. ``validate``
refuses in the order, and with the texts, that operators of the original know;
our own rules come last. The text is ``error.args[0]``; ``str(error)`` adds the
flag and the fix.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from bootbridge.errors import OperatorError
from bootbridge.options import (
    LoggingOptions,
    identity,
    quote,
    require_channel_size,
    require_duration,
    require_file,
    require_key_pair,
    require_log_format,
    require_positive_duration,
    require_profiling,
    require_readable,
)

MODES = ("grpc", "http-connect")
STRATEGIES = ("default", "destHost", "defaultRoute", "cidr", "direct")
TLS_VERSIONS = ("VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13")

# The names that Go calls secure. The first three are TLS 1.3 suites, which are
# accepted and change nothing: TLS 1.3 negotiates its own.
CIPHER_SUITES = frozenset(
    (
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
        "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
        "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    )
)

RESERVED_PORTS_BELOW = 1024
EPHEMERAL_PORTS_FROM = 49152
# sun_path holds 108 bytes on Linux, one of which ends the string.
SOCKET_PATH_BYTES_MAX = 107


@dataclass(frozen=True, kw_only=True)
class ServerOptions(LoggingOptions):
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
    admin_bind_address: str = "127.0.0.1"
    keepalive_time: float = 3600.0
    frontend_keepalive_time: float = 3600.0
    enable_profiling: bool = False
    enable_contention_profiling: bool = False
    server_id: str = field(default_factory=lambda: identity("PROXY_SERVER_ID"))
    server_count: int = 1
    agent_namespace: str = ""
    agent_service_account: str = ""
    authentication_audience: str = ""
    kubeconfig: str = ""
    kubeconfig_qps: float = 0.0
    kubeconfig_burst: int = 0
    kube_api_content_type: str = "application/vnd.kubernetes.protobuf"
    proxy_strategies: str = "default"
    cipher_suites: tuple[str, ...] = ()
    tls_min_version: str = ""
    xfr_channel_size: int = 10
    frontend_write_channel_size: int = 10
    enable_lease_controller: bool = False
    lease_namespace: str = "kube-system"
    lease_label: str = "k8s-app=konnectivity-server"
    graceful_shutdown_timeout: float = 0.0
    backend_dial_timeout: float = 0.0
    warn_on_channel_limit: bool = True
    insecure_agents: bool = False
    direct_cidrs: tuple[str, ...] = ()
    stall_timeout: float = 10.0

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies in the order in which they are asked."""
        return tuple(name for name in self.proxy_strategies.split(",") if name)

    @property
    def token_authentication(self) -> bool:
        """Whether agents prove who they are by a service account token."""
        return bool(self.agent_namespace or self.agent_service_account or self.authentication_audience)

    @property
    def needs_kubernetes(self) -> bool:
        """Whether a kube-apiserver must be asked: for token reviews or leases."""
        return self.token_authentication or self.enable_lease_controller


def validate(options: ServerOptions) -> None:
    """Raise ``OperatorError`` for the first thing that is wrong, the original's rules first."""
    for rule in _RULES_OF_THE_ORIGINAL + _OWN_RULES:
        rule(options)


def warnings(options: ServerOptions) -> tuple[str, ...]:
    """What is allowed, and still worth a line to the operator."""
    found = []
    if options.tls_min_version in ("VersionTLS10", "VersionTLS11"):
        found.append(f"--tls-min-version={options.tls_min_version} lets in versions that RFC 8996 retired")
    if options.insecure_agents and not _authenticates(options):
        found.append("--insecure-agents: anyone who reaches the agent port may take the apiserver's traffic")
    elif options.insecure_agents:
        found.append("--insecure-agents has no effect: agents are authenticated all the same")
    return tuple(found)


def parse_labels(text: str) -> dict[str, str]:
    """``a=b,c=d`` as a mapping, blanks around names and values dropped."""
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
            hint = "give the CA of the kube-apiserver's certificate, or --uds-name=<socket> --server-port=0"
            raise OperatorError(text, subject="--server-ca-cert", hint=hint)
        return
    if options.server_port != 0:
        text = f"server port should be set to 0 not {options.server_port} for UDS"
        raise OperatorError(text, subject="--server-port", hint="add --server-port=0, or drop --uds-name")
    for name in ("key", "cert", "ca cert"):
        flag = f"server-{name.replace(' ', '-')}"
        if getattr(options, flag.replace("-", "_")):
            text = f"server {name} should not be set for UDS"
            raise OperatorError(text, subject=f"--{flag}", hint=f"drop --{flag}, or drop --uds-name for TCP")


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


def _profiling(options: ServerOptions) -> None:
    require_profiling(options.enable_contention_profiling, options.enable_profiling)


def _token_authentication(options: ServerOptions) -> None:
    if not options.token_authentication:
        return
    if options.cluster_ca_cert:
        text = "--cluster-ca-cert can not be used when agent authentication is enabled"
        hint = "drop it, or drop --agent-namespace, --agent-service-account and --authentication-audience"
        raise OperatorError(text, hint=hint)
    for flag in ("agent-namespace", "agent-service-account", "authentication-audience"):
        if not getattr(options, flag.replace("-", "_")):
            text = f"--{flag} cannot be empty when agent authentication is enabled"
            raise OperatorError(text, hint="the three token flags go together")


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
    require_channel_size(options.xfr_channel_size)
    if options.frontend_write_channel_size < 0:
        text = f"--frontend-write-channel-size must be >= 0, got {options.frontend_write_channel_size}"
        raise OperatorError(text, hint="leave it out for the default")


def _tls_versions(options: ServerOptions) -> None:
    if options.tls_min_version and options.tls_min_version not in TLS_VERSIONS:
        name = quote(options.tls_min_version)
        text = f"unsupported TLS version {name}, supported values are: {', '.join(TLS_VERSIONS)}"
        raise OperatorError(text, subject="--tls-min-version", hint="leave it out for VersionTLS12")


def _cipher_suites(options: ServerOptions) -> None:
    for name in options.cipher_suites:
        if name not in CIPHER_SUITES:
            text = f"cipher suite {name} not supported, doesn't exist or considered as insecure"
            hint = "for example TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, or leave it out"
            raise OperatorError(text, subject="--cipher-suites", hint=hint)


def _lease_label(options: ServerOptions) -> None:
    if options.enable_lease_controller:
        parse_labels(options.lease_label)


def _timeouts(options: ServerOptions) -> None:
    require_duration(options.graceful_shutdown_timeout, "graceful-shutdown-timeout")
    require_duration(options.backend_dial_timeout, "backend-dial-timeout")


def _stall_timeout(options: ServerOptions) -> None:
    require_positive_duration(options.stall_timeout, "stall-timeout")


def _log_format(options: ServerOptions) -> None:
    require_log_format(options.log_format)


def _socket_path(options: ServerOptions) -> None:
    length = len(os.fsencode(options.uds_name))
    if length > SOCKET_PATH_BYTES_MAX:
        text = f"the socket path has {length} bytes, a unix socket can have {SOCKET_PATH_BYTES_MAX}"
        raise OperatorError(text, subject="--uds-name", hint="choose a shorter path")


def _direct_strategy(options: ServerOptions) -> None:
    listed = "direct" in options.strategies
    if listed and not options.direct_cidrs:
        text = "the strategy 'direct' needs --direct-cidrs: nothing may be dialled from this host otherwise"
        raise OperatorError(text, hint="for example --direct-cidrs=10.0.0.0/24,fd00::/64")
    if options.direct_cidrs and not listed:
        text = "--direct-cidrs has no effect unless --proxy-strategies lists 'direct'"
        raise OperatorError(text, hint=f"--proxy-strategies={options.proxy_strategies},direct")


def _direct_cidrs(options: ServerOptions) -> None:
    if not options.direct_cidrs:
        return
    import ipaddress

    for cidr in options.direct_cidrs:
        try:
            ipaddress.ip_network(cidr, strict=False)
        except ValueError:
            text = f"{quote(cidr)} is not an IPv4 or IPv6 network"
            hint = "for example 10.0.0.0/24 or fd00::/64"
            raise OperatorError(text, subject="--direct-cidrs", hint=hint) from None


def _frontend_identity(options: ServerOptions) -> None:
    if not options.uds_name and not options.server_cert:
        text = "--server-cert and --server-key must be set in TCP mode: that port always speaks TLS"
        raise OperatorError(text, hint="give both, or --uds-name=<socket> with --server-port=0")


def _agent_listener_identity(options: ServerOptions) -> None:
    if not options.cluster_cert:
        text = "--cluster-cert and --cluster-key must be set: the agent port always speaks TLS"
        raise OperatorError(text, hint="give the certificate and key that agents shall see")


def _agents_are_authenticated(options: ServerOptions) -> None:
    if _authenticates(options) or options.insecure_agents:
        return
    text = "anyone could connect as an agent: neither --cluster-ca-cert nor token authentication is set"
    hint = (
        "give --cluster-ca-cert=<CA of the agents' certificates>, or --agent-namespace, "
        "--agent-service-account and --authentication-audience, or accept it with --insecure-agents"
    )
    raise OperatorError(text, hint=hint)


def _files_are_readable(options: ServerOptions) -> None:
    for flag in (
        "server-key", "server-cert", "server-ca-cert",
        "cluster-key", "cluster-cert", "cluster-ca-cert", "kubeconfig",
    ):  # fmt: skip
        require_readable(getattr(options, flag.replace("-", "_")), f"--{flag}")


_RULES_OF_THE_ORIGINAL = (
    _frontend_certificates,
    _agent_certificates,
    _mode,
    _frontend_transport,
    _ports,
    _profiling,
    _token_authentication,
    _kubeconfig,
    _strategies,
    _channel_sizes,
    _tls_versions,
    _cipher_suites,
    _lease_label,
    _timeouts,
)

_OWN_RULES = (
    _log_format,
    _stall_timeout,
    _socket_path,
    _direct_strategy,
    _direct_cidrs,
    _frontend_identity,
    _agent_listener_identity,
    _agents_are_authenticated,
    _files_are_readable,
)
